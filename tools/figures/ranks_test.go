package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"
)

const (
	scalingHead = "# from a test\n# 4 NVIDIA H200, 2026-11-27\nfeat_dim,precision,executor,ranks,bsz,median_ms,val_ms,images_per_s,all_reduce_us,all_reduce_hidden\n"
	// On one GPU a step takes 1024 µs. Two lose nothing, four lose a fourth, or half of it if they share the batch.
	scalingLines = "2048,tf32,graph,1,4096,16,1,4000000,,\n2048,tf32,graph,2,4096,8,1,8000000,400,0.9\n2048,tf32,graph,4,4096,8,1,12000000,500,0.8\n" +
		"2048,tf32,graph,2,2048,8,1,6000000,400,0.9\n2048,tf32,graph,4,1024,8,1,8000000,500,0.8\n"
	scalingSmall = "784,bf16,graph,1,64,16,1,4000000,,\n784,bf16,graph,2,64,16,1,2000000,50,0\n784,bf16,graph,4,64,16,1,3000000,50,0\n"
)

// TestRanks writes tables and a picture from a small CSV of tools/ranks.sh.
func TestRanks(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		drawn       bool
		want        []string // in assets/README.md
		err         string
	}{
		{"four GPUs", scalingLines + scalingSmall, true, []string{
			"\n| 2048, tf32 | 4096 | 4.00 million | 2: 4096 | 8.00 million | 2.00 | 400 | 90 % |\n", " | 4: 1024 | 8.00 million | 2.00 | 500 | 80 % |\n",
			// 2 · 56.836 MB · 63/64 by 8 adapters in 1024 µs
			"\n| 2048×4096, tf32 | 1024 | 81 % | 14 | 27 |\n", "\n| 784×64, bf16 | 16.0 | "}, ""},
		{"two GPUs", strings.Join(strings.SplitAfter(scalingLines, "\n")[:2], ""), false, []string{"\n| 2048×4096, tf32 | 1024 | 81 % | 14 | 27 |\n"}, ""},
		{"two and one in other places", scalingSmall + scalingLines, true, []string{"\n| 784×64, bf16 | 16.0 | "}, ""},
		{"not alone", scalingLines + "2048,bf16,graph,4,4096,8,1,8000000,500,0.8\n", false, nil, "no line of one GPU before 2048, bf16 on 4"},
		{"no width", strings.ReplaceAll(scalingLines, "2048,tf32", "wide,tf32"), false, nil, `feat_dim is "wide", not a number`},
	} {
		dir := written(t, c.name, scalingFile, scalingHead+c.lines, c.want, c.err)
		if c.err != "" {
			continue
		}
		png, err := os.ReadFile(filepath.Join(dir, "assets", ranksName+".png"))
		if (err == nil) != c.drawn {
			t.Errorf("%s: the picture: %v", c.name, err)
		}
		if c.drawn {
			wantColor(t, png, 0, "the first training")
			wantColor(t, png, 1, "the second")
		}
	}
}

// TestEfficiency wants the points of the picture.
func TestEfficiency(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, scalingFile), []byte(scalingHead+scalingLines), 0o666); err != nil {
		t.Fatal(err)
	}
	s := &source{dir: dir}
	all, most := scaledTrainings(s)
	if s.err != nil || most != 4 || len(all) != 1 || all[0].alone != 1024 {
		t.Fatalf("%+v, at most %d, %v", all, most, s.err)
	}
	for name, c := range map[string]struct{ got, want plotter.XYs }{
		"weak":   {all[0].weak, plotter.XYs{{X: 2, Y: 1}, {X: 4, Y: 0.75}}},
		"strong": {all[0].strong, plotter.XYs{{X: 2, Y: 0.75}, {X: 4, Y: 0.5}}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s efficiencies are %v, want %v", name, c.got, c.want)
		}
	}
}
