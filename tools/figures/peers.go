package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"mlpool/internal/chart"
	"mlpool/internal/plotstyle"
	"mlpool/internal/text"
)

const (
	peersName = "peers"
	peersFile = "peers_h200.csv"
)

// peers lists the trainers of tools/peers.py. Each has its own mark, since their lines cross.
var peers = []struct {
	framework, name string
	mark            chart.Mark
}{{"ours", "mlpool", chart.Circle}, {"jax", "JAX", chart.Square}, {"torch", "PyTorch", chart.Triangle}}

// An exactness pairs precisions that are equally exact.
type exactness struct {
	title        string
	ours, theirs string
	guide        string
	rate         float64 // of the guide, in FLOP/s
}

// Rates of warpgroup MMA: in tf32 from the microbenchmarks in kernels/TUNING.md, in bf16 from NVIDIA's data sheet of the
// H200, without sparsity.
const (
	wgmma     = 485e12
	wgmmaBF16 = 989e12
)

var exactnesses = []exactness{
	{"tf32", "tf32", "tf32", "%.0f TFLOP/s, of wgmma", wgmma},
	{"mlpool in 3xtf32, the others in fp32", "3xtf32", "fp32", "%.0f TFLOP/s, wgmma / 3", wgmma / 3},
	{"bf16", bf16, bf16, "%.0f TFLOP/s, by data sheet", wgmmaBF16},
}

func (e exactness) of(framework string) string {
	if framework == "ours" {
		return e.ours
	}
	return e.theirs
}

// A shape is a width, a batch size and a number of hidden layers.
type shape [3]string

func shapeOf(record map[string]string) shape {
	return shape{record["feat_dim"], record["bsz"], record["layers"]}
}

// onGPUs selects the figures of a trainer on a number of GPUs.
func onGPUs(gpus, framework, precision string, at shape) key {
	return key{"framework", framework, "precision", precision, "feat_dim", at[0], "bsz", at[1], "layers", at[2], "gpus", gpus}
}

func onOneGPU(framework, precision string, at shape) key {
	return onGPUs("1", framework, precision, at)
}

// someShapes lists the shapes of the table.
var someShapes = []shape{
	{"333", "61", "4"}, {"784", "64", "4"}, {"784", "4096", "4"}, {"1024", "256", "4"},
	{"2048", "1024", "4"}, {"2048", "4096", "4"}, {"4096", "4096", "4"}, {"4096", "8192", "4"},
}

// severalPeers is the table of trainings on several GPUs in tf32, and in bf16.
func severalPeers(s *source) string {
	head := []string{"GPUs: width × batch of each"}
	for _, p := range peers {
		head = append(head, p.name)
	}
	rows := [][]string{head}
	for _, precision := range []string{"tf32", bf16} {
		for _, record := range s.records(peersFile) {
			at, gpus := shapeOf(record), record["gpus"]
			if gpus == "1" || !onGPUs(gpus, "ours", precision, at).of(record) {
				continue
			}
			row := []string{fmt.Sprintf("%s: %s×%s, %s", gpus, at[0], at[1], precision)}
			for _, p := range peers {
				row = append(row, digits(s.number(peersFile, "ms", onGPUs(gpus, p.framework, precision, at)), 3))
			}
			rows = append(rows, row)
		}
	}
	return markdown(rows...)
}

// peersTable is the table of some shapes on one GPU. Figures of other trainers may be missing.
func peersTable(s *source) string {
	head := []string{"width × batch"}
	for _, e := range exactnesses {
		for _, p := range peers {
			head = append(head, p.name+", "+e.of(p.framework))
		}
	}
	rows := [][]string{head}
	for _, at := range someShapes {
		row := []string{at[0] + "×" + at[1]}
		for _, e := range exactnesses {
			for _, p := range peers {
				read := s.number
				if p.framework == "ours" {
					read = s.needed
				}
				row = append(row, digits(read(peersFile, "ms", onOneGPU(p.framework, e.of(p.framework), at)), 3))
			}
		}
		rows = append(rows, row)
	}
	return markdown(rows...)
}

// drawPeers draws the time of a step over its work for all shapes on one GPU, a plot for each exactness.
func drawPeers(w io.Writer, s *source) error {
	picture := chart.Picture{
		Title:    "Time of a training step by its work",
		Subtitle: plotstyle.Origin(s.notes(peersFile), peersFile, true) + ". A line is one width, beside its smallest batch. Time: an epoch with validation / its steps",
		Columns:  2, Width: 340, Height: 330,
	}
	low, high := chart.Point{X: math.Inf(1), Y: math.Inf(1)}, chart.Point{}
	for _, e := range exactnesses {
		p := &chart.Plot{Title: e.title,
			X: chart.Axis{Log: true, Grid: true, Label: "work of a step, GFLOP (log)", Text: gigaText},
			Y: chart.Axis{Log: true, Grid: true, Label: "time of a step (log)", Text: func(seconds float64) string { return text.Duration(1e9 * seconds) }},
		}
		for i, peer := range peers {
			for j, l := range stepTimes(s, peer.framework, e.of(peer.framework)) {
				line := chart.Curve(i)
				line.Mark, line.Size, line.Points = peer.mark, 4, l.points
				if j == 0 {
					line.Name = peer.name
				}
				p.Series = append(p.Series, line)
				if i == 0 && l.width != "" {
					p.Labels = append(p.Labels, chart.Label{Text: l.width, Color: chart.Text, At: l.points[0], DX: 3, DY: 12})
				}
				for _, at := range l.points {
					low.X, low.Y = min(low.X, at.X), min(low.Y, at.Y)
					high.X, high.Y = max(high.X, at.X), max(high.Y, at.Y)
				}
			}
		}
		picture.Plots = append(picture.Plots, p)
	}
	if s.err != nil {
		return s.err
	}
	for i, e := range exactnesses {
		p := picture.Plots[i]
		p.X.Low, p.X.High, p.Y.Low, p.Y.High = low.X/1.3, high.X*1.3, low.Y/1.6, high.Y*1.3
		from, to := max(p.X.Low, p.Y.Low*e.rate), min(p.X.High, p.Y.High*e.rate)
		p.Series = append(p.Series, chart.Series{
			Name: fmt.Sprintf(e.guide, e.rate/1e12), Color: chart.Muted, Width: 1, Dashes: guideDashes,
			Points: []chart.Point{{X: from, Y: from / e.rate}, {X: to, Y: to / e.rate}},
		})
	}
	return picture.WritePNG(w)
}

// guideDashes are those of lines to compare with.
var guideDashes = []float64{6, 4}

// A stepLine holds the seconds of a step over its FLOP, by batch size, for one width and depth.
type stepLine struct {
	width  string // empty for unusual depths
	points []chart.Point
}

// stepTimes returns the lines of a framework, one for each width and depth.
func stepTimes(s *source, framework, precision string) (lines []stepLine) {
	index := map[[2]string]int{}
	for _, record := range s.records(peersFile) {
		at := shapeOf(record)
		if !onOneGPU(framework, precision, at).of(record) {
			continue
		}
		of := func(column string) float64 {
			return s.needed(peersFile, column, onOneGPU(framework, precision, at))
		}
		i, seen := index[[2]string{at[0], at[2]}]
		if !seen {
			i = len(lines)
			index[[2]string{at[0], at[2]}] = i
			lines = append(lines, stepLine{})
			if at[2] == "4" {
				lines[i].width = at[0]
			}
		}
		lines[i].points = append(lines[i].points, chart.Point{X: of("flop_step"), Y: of("ms") / 1e3 * of("bsz") / trainingSamples})
	}
	for _, l := range lines {
		slices.SortFunc(l.points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return lines
}

const trainingSamples = 60000

// gigaText writes billions.
func gigaText(v float64) string { return strconv.FormatFloat(v/1e9, 'g', 4, 64) }
