package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/chart/charttest"
	"mlpool/internal/must"
	"mlpool/internal/plotstyle"
)

const root = "../.."

// TestDocuments wants the tables and the pictures to be up to date.
func TestDocuments(t *testing.T) {
	must.OK(t, run([]string{"-check", "-root", root}, io.Discard))
	s := &source{dir: root + "/assets"}
	for _, p := range pictures {
		var b bytes.Buffer
		must.OK(t, p.draw(&b, s))
		kept := must.Read(t, filepath.Join(s.dir, p.name+".png"))
		if n := charttest.Differing(t, b.Bytes(), kept); n > 20 {
			t.Errorf("%d pixels of %s.png are out of date: run go run ./tools/figures", n, p.name)
		}
		if p.name == "epochs" {
			for _, kind := range kinds {
				if n := colored(t, kept, plotstyle.Allocator(kind)); n < 1000 {
					t.Errorf("%d pixels are of %s", n, kind)
				}
			}
		}
	}
}

// colored counts the pixels that have the colour of curve i.
func colored(t *testing.T, png []byte, i int) (n int) {
	t.Helper()
	pixels, want := charttest.Pixels(t, png), color.RGBA(plotstyle.Palette[i])
	for i := 0; i < len(pixels.Pix); i += 4 {
		if want == (color.RGBA{pixels.Pix[i], pixels.Pix[i+1], pixels.Pix[i+2], 255}) {
			n++
		}
	}
	return n
}

// drawOnly lets the runs of a test draw only the pictures of a file: those of other files would be as they were.
func drawOnly(t *testing.T, file string) {
	t.Helper()
	all := pictures
	t.Cleanup(func() { pictures = all })
	pictures = slices.DeleteFunc(slices.Clone(all), func(p picture) bool { return p.file != file })
}

// copied returns a folder with copies of the documents and the measurements.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob(root + "/assets/*.[cjt][sx]*")
	must.OK(t, err)
	for _, file := range append(files, root+"/README.md", root+"/assets/README.md", root+"/tools/allocbench/README.md") {
		to := filepath.Join(dir, strings.TrimPrefix(filepath.ToSlash(file), root))
		must.OK(t, os.MkdirAll(filepath.Dir(to), 0o777), os.WriteFile(to, must.Read(t, file), 0o666))
	}
	return dir
}

// TestCheck changes a document or a measurement: -check must fail, and a run without it must
// update the document or fail.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name, file, old, new string
		err                  string // of -check
		fails                bool   // also without -check
	}{
		{"nothing", "README.md", "# mlpool", "# mlpool", "", false},
		{"a table", "README.md", "| 784, 64, eager, fp32 | ", "| 784, 64, eager, fp32 | 9", "README.md: the table epochs is out of date", false},
		{"an epoch", "assets/training_h200.csv", "mnist.toml,eager,fp32,custom,", "mnist.toml,eager,fp32,custom,9", "the table trainings is out of date", false},
		{"a job without an allocator", "assets/training_h200.csv", "mnist.toml,graph,tf32,cuda", "mnist.toml,graph,tf32,hoard", "training_h200.csv: no median_ms of config mnist.toml executor graph precision tf32 allocator cuda", true},
		{"two of one job", "assets/training_h200.csv", "mnist.toml,graph,3xtf32,cuda", "mnist.toml,graph,3xtf32,custom", "2 records of config mnist.toml", true},
		{"no number", "assets/numerics_h200.csv", "4.39952e-06", "few", `is "few", not a number`, true},
		{"other memory", "assets/training_h200.csv", "18.0,100.0,128.0,98.06", "18.0,101.0,128.0,98.06", "101 MiB are allocated, not 100", true},
		{"no CSV", "assets/training_h200.csv", "\nmnist.toml,eager,", "\nmnist.toml,", "wrong number of fields", true},
		{"no JSON", "assets/recorded_torch_h200.json", "[", "{", "invalid character", true},
		{"no precision", "assets/numerics_h200.csv", "\neager:tf32,", "\neager:fp16,", "numerics_h200.csv: no max_diff_0_49 of run eager:tf32", true},
		{"a replay cut", "assets/recorded_h200.csv", "0.0357258,false", "0.0357258,true", "the table recorded is out of date", false},
		{"no replay", "assets/recorded_h200.csv", "replay,cnn warm,tlsf", "replay,cnn warm,hoard", "recorded_h200.csv: no mean_ns of scenario replay", true},
		{"no GPU alone", "assets/scaling_h200.csv", "784,3xtf32,graph,1,64,", "784,tf32,graph,1,64,", "no line of one GPU before 784, 3xtf32 on 2", true},
		{"no images", "assets/scaling_h200.csv", ",images_per_s,", ",image_rate,", `images_per_s of 2048, tf32 is "", not a number`, true},
		{"no peer", "assets/peers_h200.csv", ",bf16,784,64,4,1,", ",fp8,784,64,4,1,", "peers_h200.csv: no ms of framework ours precision bf16 feat_dim 784 bsz 64 layers 4 gpus 1", true},
		{"no all-reduce", "assets/allreduce_h200.csv", "allreduce,4 B,cudaMalloc,", "allreduce,4 B,hoard,", "allreduce_h200.csv: no mean_ns of scenario allreduce", true},
		{"no wrapper", "assets/strategies_h200.csv", "pair,1 MiB,limit", "pair,1 MiB,hoard", "strategies_h200.csv: no mean_ns of scenario pair", true},
		{"a part more", "assets/torch_memory.csv", "\nlimits,", "\ncopies,within a GPU,mlpool,step_ms,6,0.5,0.4,0.6,,,\nlimits,", "the table torch-more is out of date", false},
		{"no marks", "tools/allocbench/README.md", "<!-- wrappers: written", "<!-- wrapped", "no line", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			drawOnly(t, path.Base(c.file))
			dir := copied(t)
			file := filepath.Join(dir, c.file)
			must.OK(t, os.WriteFile(file, []byte(strings.Replace(string(must.Read(t, file)), c.old, c.new, 1)), 0o666))
			err := run([]string{"-check", "-root", dir}, io.Discard)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if c.err == "" {
				return
			}
			if err := run([]string{"-root", dir}, io.Discard); (err != nil) != c.fails {
				t.Errorf("error %v without -check", err)
			}
			if err := run([]string{"-root", dir, "-check"}, io.Discard); (err != nil) != c.fails {
				t.Errorf("error %v once it is written", err)
			}
		})
	}
}

// TestSweep draws a sweep: in the best colour a shape at the floor, in the worst one far from it, and a failure not at all.
func TestSweep(t *testing.T) {
	const head = "# NVIDIA H200, driver 1, 2026-11-30: peers.py\nframework,precision,feat_dim,bsz,layers,gpus,ms,pixels,samples,floor_ms\n"
	path := filepath.Join(t.TempDir(), "sweep.csv")
	write := func(rows string) error {
		must.OK(t, os.WriteFile(path, []byte(head+rows), 0o666))
		return run([]string{"-sweep", path}, io.Discard)
	}
	count := func(band int) int {
		return colored(t, must.Read(t, strings.TrimSuffix(path, "csv")+"png"), int(shareBands[band].color[1]-'0'))
	}
	const bare = "ours,tf32,100,100,2,1,10,784,6000,5\n" // from 40 %
	must.OK(t, write(bare))
	last := len(shareBands) - 1
	best, worst := count(0), count(last) // in the key
	must.OK(t, write(bare+"ours,tf32,784,64,2,1,10,784,6000,9\nours,tf32,2048,64,2,1,,784,6000,9\n"))
	if n := count(0) - best; n < 100 || n > 300 || count(last) != worst {
		t.Errorf("a dot of the best band is %d pixels", n)
	}
	dot := "ours,fp32,784,64,2,1,10,784,6000,1\njax,fp32,784,64,2,1,%d,784,6000,1\n"
	areas := map[int]int{}
	for _, ms := range []int{11, 9} {
		must.OK(t, write(fmt.Sprintf(dot, ms)))
		areas[ms] = count(last)
	}
	if areas[11] <= areas[9] {
		t.Errorf("a dot and a cross are of %v pixels, by the ms of JAX", areas)
	}
	for rows, want := range map[string]string{"": "no row of mlpool", "ours,tf32,784,64,2,1,x,784,6000,9\n": `ms of a row in tf32 is "x"`} {
		if err := write(rows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-what":                "see figures -h",
		"all":                  `unexpected argument "all"`,
		"-root " + t.TempDir(): "no such file",
	} {
		if err := run(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
	var help bytes.Buffer
	if err := run([]string{"-h"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-check") {
		t.Errorf("error %v, help %s", err, help.String())
	}
	if err := drawEpochs(io.Discard, &source{dir: t.TempDir()}); err == nil {
		t.Error("a picture of no figures")
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		v    float64
		n    int
		want string
	}{
		{48.89, 3, "48.9"}, {180.34, 3, "180"}, {55, 3, "55.0"}, {46.25, 3, "46.3"}, {1013.1, 3, "1013"}, {9.996, 3, "10.0"},
		{0.8, 2, "0.80"}, {0.97, 2, "0.97"}, {0.996, 2, "1.0"}, {11.31, 2, "11"}, {99.96, 3, "100"}, {0, 3, "0.00"}, {math.NaN(), 3, "–"},
	} {
		if got := digits(c.v, c.n); got != c.want {
			t.Errorf("%v to %d digits is %q, want %q", c.v, c.n, got, c.want)
		}
	}
	for want, ns := range map[string][]float64{
		"39–47 ns": {40, 38.65, 46.98}, "0.95–1.0 µs": {951.4, 1015.9}, "81 ns": {81.4, 81.2}, "1.0 µs": {999.6}, "999 ns": {999.4},
	} {
		if got := span(ns...); got != want {
			t.Errorf("%v is %q, want %q", ns, got, want)
		}
	}
	for v, want := range map[float64]string{1.526e8: "153 M", 235676: "236 k", 1.9e7: "19 M", 12: "12", 999_400: "999 k", 999_600: "1.0 M", 999.6: "1.0 k"} {
		if got := count(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
