package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/chart"
	"mlpool/internal/chart/charttest"
	"mlpool/internal/plotstyle"
)

// makeRun writes the logs of an invented run that learns at the given rate.
func makeRun(t *testing.T, name string, rate float64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var losses, valLosses, valAccs strings.Builder
	for step := range 400 {
		fmt.Fprintln(&losses, float32(2.3*math.Exp(-rate*float64(step))*(1+0.1*math.Sin(float64(step)))))
	}
	for epoch := range 4 {
		fmt.Fprintln(&valLosses, 0.3/float64(epoch+1)+rate)
		fmt.Fprintln(&valAccs, 0.9+rate*float64(epoch))
	}
	writeLog(t, dir, "train_losses.txt", losses.String())
	writeLog(t, dir, "val_losses.txt", valLosses.String())
	writeLog(t, dir, "val_accs.txt", valAccs.String())
	return dir
}

func writeLog(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// drawn runs the command, and returns its notes and the number of pixels in the colour of each curve.
func drawn(t *testing.T, args ...string) (notes string, count []int) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.png")
	var b strings.Builder
	if err := run(append([]string{"-o", out}, args...), &b); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	pixels := charttest.Pixels(t, text)
	if size := pixels.Rect.Size(); size.X < 7*plotstyle.DPI || size.X > 9*plotstyle.DPI || size.Y < 4*plotstyle.DPI {
		t.Errorf("size %v: the axes have 7 by 4 inches", size)
	}
	count = make([]int, len(plotstyle.Palette))
	for i := 0; i < len(pixels.Pix); i += 4 {
		if c := slices.Index(plotstyle.Palette, color.NRGBA{pixels.Pix[i], pixels.Pix[i+1], pixels.Pix[i+2], 255}); c >= 0 {
			count[c]++
		}
	}
	return b.String(), count
}

func TestDraws(t *testing.T) {
	one, two := makeRun(t, "one", 0.01), makeRun(t, "two", 0.005)
	for _, args := range []string{"", "-smooth 20", "-smooth 0", "-metric val_losses", "-metric val_accs", "-smooth 100000"} {
		notes, count := drawn(t, append(strings.Fields(args), one, "two="+two)...)
		if notes != "" || count[0] < 300 || count[1] < 300 || count[2] > 0 {
			t.Errorf("%s: notes %q, %d pixels by curve", args, notes, count)
		}
	}
}

// TestDrawsOddRuns draws unusual logs of trainings.
func TestDrawsOddRuns(t *testing.T) {
	for text, note := range map[string]string{"0.5\n": "", "0.5\n0.5\n0.5\n": "", "0\n0\n": "", "-3\n-2\n": "", "2.3\n7\nNaN\n+Inf\n1e999\n": "left out 3 of 5"} {
		dir := t.TempDir()
		writeLog(t, dir, "train_losses.txt", text)
		notes, count := drawn(t, dir)
		if !strings.Contains(notes, note) || (note == "") != (notes == "") || count[0] == 0 {
			t.Errorf("%q: notes %q, want %q; %d pixels", text, notes, note, count[0])
		}
	}
}

// TestFindsRuns searches a log_dir with nested runs, folders of runs and a comparison: FOLDER/...
// finds each log_dir, not the folders of its runs, and the runs of a comparison.
func TestFindsRuns(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(root, "logs")
	const one, compared = "20261122-101500-custom", "20261122-101600-compare"
	for name, text := range map[string]string{
		".": "3\n2\n", "mnist": "2\n1\n", "mnist/cuda": "2\n1.5\n", "all/by/custom": "4\n1\n", "cut": "", "diverged": "NaN\nNaN\n",
		one: "2\n1\n", compared + "/custom": "2\n1\n", compared + "/cuda": "2\n1\n",
	} {
		dir := filepath.Join(logs, name)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		writeLog(t, dir, "train_losses.txt", text)
		if strings.HasPrefix(name, "2026") {
			writeLog(t, dir, runFile, "{}\n")
		}
	}
	writeLog(t, filepath.Join(logs, compared), comparisonFile, "{}\n")
	latest := filepath.Join(logs, "latest")
	if err := os.Symlink(compared, latest); err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		args []string
		want string // names and folders
	}{
		{[]string{logs + "/..."}, "all/by/custom=all/by/custom cut=cut diverged=diverged logs=. mnist/cuda=mnist/cuda mnist=mnist"},
		{[]string{"a=" + logs + "/..."}, "a/all/by/custom=all/by/custom a/cut=cut a/diverged=diverged a/mnist/cuda=mnist/cuda a/mnist=mnist a=."},
		{[]string{logs + "/mnist"}, "mnist=mnist"},
		{[]string{logs, "b=" + logs + "/mnist/..."}, "b/cuda=mnist/cuda b=mnist logs=."},
		{[]string{latest + "/..."}, "cuda=" + compared + "/cuda custom=" + compared + "/custom"},
		{[]string{logs + "/" + one + "/..."}, one + "=" + one},
		{[]string{latest + "/custom"}, "custom=latest/custom"},
		{[]string{"x=" + logs + "/" + one}, "x=" + one},
	} {
		runs, err := findRuns(c.args, "train_losses.txt")
		var got []string
		for _, r := range runs {
			dir, err := filepath.Rel(logs, r.dir)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.name+"="+filepath.ToSlash(dir))
		}
		slices.Sort(got)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%q: %v, error %v, want %s", c.args, got, err, c.want)
		}
	}

	notes, count := drawn(t, logs+"/...")
	if n := strings.Count(notes, "plot: left out: "); n != 2 || strings.Count(notes, "\n") != 2 {
		t.Errorf("want a note on each of the runs cut and diverged, got:\n%s", notes)
	}
	if slices.Min(count[:4]) < 300 {
		t.Errorf("%d pixels by curve", count)
	}
}

func TestErrors(t *testing.T) {
	good := makeRun(t, "good", 0.01)
	dir := t.TempDir()
	writeLog(t, dir, "train_losses.txt", "2.3\nabc\n")
	writeLog(t, dir, "val_losses.txt", "")
	writeLog(t, dir, "val_accs.txt", "NaN\nNaN\n")
	out := filepath.Join(t.TempDir(), "out.png")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no output":      {[]string{good}, "-o needs a file that ends in .png"},
		"other format":   {[]string{"-o", "out.svg", good}, "-o needs a file that ends in .png"},
		"no run":         {[]string{"-o", out}, "no run to draw"},
		"no such metric": {[]string{"-o", out, "-metric", "loss", good}, "-metric must be train_losses, val_losses or val_accs"},
		"no such flag":   {[]string{"-o", out, "-what", good}, "see plot -h"},
		"smooth -2":      {[]string{"-o", out, "-smooth", "-2", good}, "-smooth must be -1 or more"},
		"no such run":    {[]string{"-o", out, good, filepath.Join(dir, "none")}, "is " + filepath.Join(dir, "none") + " the log_dir of a run?"},
		"no logs":        {[]string{"-o", out, filepath.Join(dir, "none", "...")}, "no log_dir in " + filepath.Join(dir, "none") + ": train first"},
		"no run in it":   {[]string{"-o", out, t.TempDir() + "/..."}, ": train first, for example with make train, or name the folders of runs"},
		"only bad runs":  {[]string{"-o", out, "-metric", "val_losses", dir + "/..."}, "no run that can be drawn"},
		"not a number":   {[]string{"-o", out, dir}, `train_losses.txt:2: "abc" is not a number`},
		"empty":          {[]string{"-o", out, "-metric", "val_losses", dir}, "is empty"},
		"all NaN":        {[]string{"-o", out, "-metric", "val_accs", dir}, "none of the 2 values"},
		"no such folder": {[]string{"-o", filepath.Join(dir, "none", "out.png"), good}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(c.args, &strings.Builder{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("it wrote a picture")
			}
		})
	}
}

func TestMovingMean(t *testing.T) {
	points := []chart.Point{{X: 1, Y: 1}, {X: 2, Y: 2}, {X: 4, Y: 6}, {X: 5, Y: 4}}
	for window, want := range map[int][]float64{
		1: {1, 2, 6, 4},
		2: {1.5, 4, 5, 4},
		3: {1.5, 3, 4, 5},
		9: {3.25, 3.25, 3.25, 3.25},
	} {
		got := movingMean(points, window)
		for i := range got {
			if got[i] != (chart.Point{X: points[i].X, Y: want[i]}) {
				t.Errorf("window %d: %v, want the means %v", window, got, want)
				break
			}
		}
	}
}

// TestSmoothen wants the window chosen by the longest run, unless the user chose it.
func TestSmoothen(t *testing.T) {
	values := make([]float64, 9380)
	for _, c := range []struct{ asked, steps, want int }{
		{-1, 9380, 31}, {-1, 600, 2}, {-1, 599, 1}, {-1, 8, 0}, {0, 9380, 0}, {50, 8, 50},
	} {
		f := figure{smooth: c.asked, curves: []curve{newCurve("short", []float64{1, 2}), newCurve("long", values[:c.steps])}}
		if f.smoothen(); f.smooth != c.want || len(f.curves[1].smooth) != c.steps {
			t.Errorf("%+v: means of %d, %d of them", c, f.smooth, len(f.curves[1].smooth))
		}
	}
}

// TestRange wants axes that show the whole curve and little else.
func TestRange(t *testing.T) {
	falls := make([]float64, 1000)
	for i := range falls {
		falls[i] = 1
	}
	falls[0], falls[19], falls[999] = 50, 9, 0.1
	for _, c := range []struct {
		name             string
		values           []float64
		x0, x1, min, max float64
	}{
		{"many steps", falls, 0, 1000, 0, 60},
		{"epochs", []float64{95, 97, 98}, 1, 3, 94, 99},
		{"one", []float64{5}, 0.5, 1.5, 4.9, 5.1},
	} {
		f := figure{curves: []curve{newCurve("run", c.values)}}
		f.smoothen()
		p := &chart.Plot{}
		if f.setRange(p); p.X.Low != c.x0 || p.X.High != c.x1 || p.Y.Low < c.min || p.Y.High > c.max {
			t.Errorf("%s: x %v to %v, y %v to %v", c.name, p.X.Low, p.X.High, p.Y.Low, p.Y.High)
		}
		for _, q := range f.curves[0].smooth {
			if q.Y < p.Y.Low || q.Y > p.Y.High {
				t.Errorf("%s: %v at %v is not between %v and %v", c.name, q.Y, q.X, p.Y.Low, p.Y.High)
			}
		}
	}
}
