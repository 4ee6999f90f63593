package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/chart"
)

const (
	scalingHead = "# from a test\n# 4 NVIDIA H200, 2026-11-27\nfeat_dim,precision,executor,ranks,bsz,images,median_ms,val_ms,images_per_s,all_reduce_us,all_reduce_hidden\n"
	// On one GPU a step takes 1024 µs. Two lose nothing, four lose a fourth, or half of it if they share the batch.
	scalingLines = "2048,tf32,graph,1,4096,60000,16,1,4000000,,\n2048,tf32,graph,2,4096,60000,8,1,8000000,400,0.9\n2048,tf32,graph,4,4096,60000,8,1,12000000,500,0.8\n" +
		"2048,tf32,graph,2,2048,60000,8,1,6000000,400,0.9\n2048,tf32,graph,4,1024,60000,8,1,8000000,500,0.8\n"
	// As many images on each of two GPUs.
	scalingLonger = "2048,tf32,graph,2,4096,120000,16,1,7000000,400,0.9\n"
	scalingSmall  = "784,bf16,graph,1,64,60000,16,1,4000000,,\n784,bf16,graph,2,64,60000,16,1,2000000,50,0\n784,bf16,graph,4,64,60000,16,1,3000000,50,0\n"
)

// scalingBoth has the longer epochs as well.
var scalingBoth = strings.Replace(scalingLines, "400,0.9\n", "400,0.9\n"+scalingLonger, 1)

// TestRanks writes tables and a picture from a small CSV of tools/ranks.sh.
func TestRanks(t *testing.T) {
	dir := written(t, "ranks", scalingFile, scalingHead+scalingBoth+scalingSmall, []string{
		"\n| 2048, tf32 | 4096 | 4.00 million | 2: 4096 | 8.00 million | 2.00 | 1.75 | 400 | 90 % |\n", " | 4: 1024 | 8.00 million | 2.00 | – | 500 | 80 % |\n",
		// 2 · 56.836 MB · 63/64 by 8 adapters in 1024 µs
		"\n| 2048×4096, tf32 | 1024 | 96 % | 14 | 34 |\n", "\n| 784×64, bf16 | 16.0 | "}, "")
	png := []byte(read(t, filepath.Join(dir, "assets", ranksName+".png")))
	wantColor(t, png, 0, "the first training")
	wantColor(t, png, 1, "the second")
	alone := scalingSmall + strings.Replace(scalingBoth, "2048,tf32,graph,2,4096,60000", "2048,tf32,graph,2,1024,60000", 1)
	written(t, "longer epochs alone", scalingFile, scalingHead+alone, nil, "2048, tf32 on 2 has 120000 images, and no line before it with 60000")
}

// TestEfficiency wants the points of the picture, of longer epochs if there are some.
func TestEfficiency(t *testing.T) {
	for lines, weak := range map[string][]chart.Point{
		scalingLines:                 {{X: 2, Y: 1}, {X: 4, Y: 0.75}},
		scalingLines + scalingLonger: {{X: 2, Y: 0.875}},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, scalingFile), []byte(scalingHead+lines), 0o666); err != nil {
			t.Fatal(err)
		}
		s := &source{dir: dir}
		all, most := scaledTrainings(s)
		if s.err != nil || most != 4 || len(all) != 1 || all[0].alone != 1024 {
			t.Fatalf("%+v, at most %d, %v", all, most, s.err)
		}
		if strong := ([]chart.Point{{X: 2, Y: 0.75}, {X: 4, Y: 0.5}}); !slices.Equal(all[0].weak, weak) || !slices.Equal(all[0].strong, strong) {
			t.Errorf("efficiencies are %v and %v, want %v and %v", all[0].weak, all[0].strong, weak, strong)
		}
	}
}
