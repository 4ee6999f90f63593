// Command plot draws the curves of one or more training runs to a PNG.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/chart"
)

const usage = `usage: plot -o out.png [flags] run...

Draws one curve for each run: a log_dir of train, or the folder of a run in it.
name=folder sets the name in the legend; otherwise it is the folder's name.
folder/... stands for every log_dir in the folder, at any depth, or for the runs of a
comparison: logs/mnist/latest/...

flags:
`

// A metric is a log file of a run and how to draw it.
type metric struct {
	file   string
	xLabel string // what a line of the file is of
	yLabel string
	scale  float64 // from the unit of the file to that of the label
}

var metrics = map[string]metric{
	"train_losses": {"train_losses.txt", "step", "training loss (nats)", 1},
	"val_losses":   {"val_losses.txt", "epoch", "validation loss (nats)", 1},
	"val_accs":     {"val_accs.txt", "epoch", "validation accuracy (%)", 100},
}

func main() {
	err := run(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "plot: %v\n", err)
		os.Exit(1)
	}
}

// run runs the command. It writes warnings to notes.
func run(args []string, notes io.Writer) error {
	flags := flag.NewFlagSet("plot", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	out := flags.String("o", "", "the PNG `file` to write")
	what := flags.String("metric", "train_losses", "what to draw: train_losses, val_losses or val_accs")
	smooth := flags.Int("smooth", -1, "draw the mean of `N` neighbouring values over the faint values; 0 draws only the values, -1 chooses N for about 300 separate means")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(notes, usage)
		flags.SetOutput(notes)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; see plot -h", err)
	}
	m, ok := metrics[*what]
	switch {
	case filepath.Ext(*out) != ".png":
		return fmt.Errorf("-o needs a file that ends in .png, not %q", *out)
	case !ok:
		return fmt.Errorf("-metric must be train_losses, val_losses or val_accs, not %q", *what)
	case *smooth < -1:
		return fmt.Errorf("-smooth must be -1 or more, not %d", *smooth)
	case flags.NArg() == 0:
		return errors.New("no run to draw: name a log_dir of train")
	}
	runs, err := findRuns(flags.Args(), m.file)
	if err != nil {
		return err
	}

	f := figure{metric: m, smooth: *smooth}
	for _, r := range runs {
		c, left, err := r.curve(m)
		switch {
		case err != nil && r.found:
			fmt.Fprintf(notes, "plot: left out: %v\n", err)
			continue
		case err != nil:
			return err
		case left > 0:
			fmt.Fprintf(notes, "plot: %s: left out %d of %d values that cannot be drawn\n", r.name, left, left+len(c.raw))
		}
		f.curves = append(f.curves, c)
	}
	if len(f.curves) == 0 {
		return errors.New("no run that can be drawn")
	}

	f.smoothen()

	var picture bytes.Buffer
	if err := f.draw(&picture); err != nil {
		return err
	}
	return os.WriteFile(*out, picture.Bytes(), 0o666)
}

// A loggedRun is a folder with the logs of a run and its name in the legend.
type loggedRun struct {
	name, dir string
	found     bool // by "/...", not named
}

// Files that identify the folders of train.
const (
	runFile        = "run.json"        // in the folder of a run
	comparisonFile = "comparison.json" // in the folder of a comparison, which holds its runs
)

// findRuns returns the runs named by the arguments, and those with a log file below the
// folders that end in "/...". Of a log_dir it returns the last run, whose logs are there, and
// not the folders of its runs.
func findRuns(args []string, file string) (runs []loggedRun, err error) {
	for _, arg := range args {
		name, dir, named := strings.Cut(arg, "=")
		if !named {
			name, dir = "", arg
		}
		root, all := strings.CutSuffix(filepath.ToSlash(dir), "/...")
		if !all {
			if !named {
				name = filepath.Base(dir)
			}
			runs = append(runs, loggedRun{name, dir, false})
			continue
		}
		before := len(runs)
		given := root
		if to, err := filepath.EvalSymlinks(root); err == nil { // such as latest
			root = to
		}
		compared := has(root, comparisonFile)
		err := filepath.WalkDir(filepath.FromSlash(root), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() && path != root && !compared && has(path, runFile) {
				return fs.SkipDir
			}
			if err != nil || e.IsDir() || e.Name() != file {
				return err
			}
			within, err := filepath.Rel(root, filepath.Dir(path))
			if err == nil {
				if within == "." && !named {
					within = filepath.Base(root)
				}
				runs = append(runs, loggedRun{filepath.ToSlash(filepath.Join(name, within)), filepath.Dir(path), true})
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if len(runs) == before {
			return nil, fmt.Errorf("no log_dir in %s: train first, for example with make train, or name the folders of runs", given)
		}
	}
	return runs, nil
}

func has(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// curve reads a metric of the run. left counts the values that cannot be drawn.
func (r loggedRun) curve(m metric) (c curve, left int, err error) {
	values, err := readValues(filepath.Join(r.dir, m.file))
	if errors.Is(err, fs.ErrNotExist) {
		return c, 0, fmt.Errorf("%w: is %s the log_dir of a run?", err, r.dir)
	}
	if err != nil {
		return c, 0, err
	}
	for i := range values {
		values[i] *= m.scale
	}
	c = newCurve(r.name, values)
	if len(c.raw) == 0 {
		return c, 0, fmt.Errorf("%s: none of the %d values in %s can be drawn", r.name, len(values), m.file)
	}
	return c, len(values) - len(c.raw), nil
}

// readValues reads a log file of one number a line.
func readValues(path string) ([]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var values []float64
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		v, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) { // out of range is ±Inf
			return nil, fmt.Errorf("%s:%d: %q is not a number", path, n, lines.Text())
		}
		values = append(values, v)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s is empty: the run has finished no epoch", path)
	}
	return values, nil
}

// A curve is a run's values, raw and smooth.
type curve struct {
	name        string
	raw, smooth []chart.Point
}

// newCurve omits values that cannot be drawn: NaN and Inf of a diverged run.
func newCurve(name string, values []float64) curve {
	c := curve{name: name}
	for i, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			c.raw = append(c.raw, chart.Point{X: float64(i + 1), Y: v})
		}
	}
	return c
}

// means is the number of separate means that shows a run without its noise.
const means = 300

// smoothen chooses the window of means if the user did not, and computes them.
func (f *figure) smoothen() {
	if f.smooth < 0 {
		for _, c := range f.curves {
			f.smooth = max(f.smooth, len(c.raw)/means)
		}
	}
	for i := range f.curves {
		f.curves[i].smooth = movingMean(f.curves[i].raw, max(f.smooth, 1))
	}
}

// movingMean returns for each point the mean of the window points around it, or of fewer near
// the ends. Unlike a mean of previous values it does not lag.
func movingMean(points []chart.Point, window int) []chart.Point {
	sums := make([]float64, len(points)+1)
	for i, p := range points {
		sums[i+1] = sums[i] + p.Y
	}
	means := slices.Clone(points)
	for i := range means {
		from := max(0, i-(window-1)/2)
		to := min(len(points), i+window/2+1)
		means[i].Y = (sums[to] - sums[from]) / float64(to-from)
	}
	return means
}
