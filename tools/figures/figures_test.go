package main

import (
	"bytes"
	"errors"
	"flag"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/tools/plotstyle"
	"mlpool/tools/plotstyle/plotstyletest"
)

const root = "../.."

// TestDocuments finds the tables of the documents, and the picture, as the files of
// figures have them.
func TestDocuments(t *testing.T) {
	if err := run([]string{"-check", "-root", root}, io.Discard); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := drawEpochs(&b, &source{dir: root + "/assets"}); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(root + "/assets/epochs.png")
	if err != nil {
		t.Fatal(err)
	}
	if n := plotstyletest.Differing(t, b.Bytes(), kept); n > 20 {
		t.Errorf("%d pixels of epochs.png are not those of %s: run go run ./tools/figures", n, training)
	}
	found := map[color.RGBA]int{}
	pixels := plotstyletest.Pixels(t, kept)
	for i := 0; i < len(pixels.Pix); i += 4 {
		found[color.RGBA{pixels.Pix[i], pixels.Pix[i+1], pixels.Pix[i+2], 255}]++
	}
	for _, kind := range kinds {
		if n := found[color.RGBA(plotstyle.Palette[plotstyle.Allocator(kind)])]; n < 1000 {
			t.Errorf("%d pixels are of %s", n, kind)
		}
	}
}

// copied returns a folder with the documents and the figures.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob(root + "/assets/*_h200.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, root+"/README.md", root+"/assets/README.md", root+"/tools/allocbench/README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, strings.TrimPrefix(filepath.ToSlash(file), root))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.WriteFile(to, text, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCheck changes a figure on either side, and wants to hear of it; without -check
// it is written.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name, file, old, new string
		err                  string // of -check
		fails                bool   // also without -check
	}{
		{"nothing", "README.md", "# mlpool", "# mlpool", "", false},
		{"a table", "README.md", "| 48.9 |", "| 48.8 |", "README.md: the table of epochs is not that of the figures", false},
		{"an epoch", "assets/training_h200.csv", "mnist.toml,eager,fp32,custom,48.89", "mnist.toml,eager,fp32,custom,47.89", "the table of trainings is not", false},
		{"a job without an allocator", "assets/training_h200.csv", "mnist.toml,graph,tf32,cuda", "mnist.toml,graph,tf32,hoard", "training_h200.csv: no median_ms of config mnist.toml executor graph precision tf32 allocator cuda", true},
		{"two of one job", "assets/training_h200.csv", "mnist.toml,graph,3xtf32,cuda", "mnist.toml,graph,3xtf32,custom", "2 records of config mnist.toml", true},
		{"no number", "assets/numerics_h200.csv", "4.39952e-06", "few", `is "few", no number`, true},
		{"other memory", "assets/training_h200.csv", "18.0,100.0,128.0,98.06", "18.0,101.0,128.0,98.06", "101 MiB are allocated, not 100", true},
		{"no CSV", "assets/trainers_h200.csv", "\n784,64,", "\n784,", "wrong number of fields", true},
		{"no JSON", "assets/recorded_torch_h200.json", "[", "{", "invalid character", true},
		{"no precision", "assets/numerics_h200.csv", "\neager:tf32,", "\neager:bf16,", "numerics_h200.csv: no max_diff_0_49 of run eager:tf32", true},
		{"no replay", "assets/recorded_h200.csv", "replay,cnn warm,tlsf", "replay,cnn warm,hoard", "recorded_h200.csv: no mean_ns of scenario replay", true},
		{"no wrapper", "assets/strategies_h200.csv", "pair,1 MiB,limit", "pair,1 MiB,hoard", "strategies_h200.csv: no mean_ns of scenario pair", true},
		{"no marks", "tools/allocbench/README.md", "<!-- wrappers: written", "<!-- wrapped", "has no line", true},
	} {
		dir := copied(t)
		path := filepath.Join(dir, c.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o666); err != nil {
			t.Fatal(err)
		}
		err = run([]string{"-check", "-root", dir}, io.Discard)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
		if c.err == "" {
			continue
		}
		if err := run([]string{"-root", dir}, io.Discard); (err != nil) != c.fails {
			t.Errorf("%s: error %v without -check", c.name, err)
		}
		if err := run([]string{"-root", dir, "-check"}, io.Discard); (err != nil) != c.fails {
			t.Errorf("%s: error %v once it is written", c.name, err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-what":                "see figures -h",
		"all":                  `"all" is no flag`,
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
