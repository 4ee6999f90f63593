package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"mlpool/internal/chart"
	"mlpool/internal/output"
	"mlpool/internal/plotstyle"
)

const (
	sweepName = "sweep_h200"
	sweepFile = "sweep_h200.csv"
)

// shareBands are the colours of shares of the floor's speed, from the best on.
var shareBands = []struct {
	least float64
	name  string
	color chart.Color
}{{0.8, "80 % or more", "c2"}, {0.6, "from 60 %", "c0"}, {0.4, "from 40 %", "c6"}, {0.2, "from 20 %", "c5"}, {0, "less than 20 %", "c1"}}

// drawSweepFile draws a CSV of tools/peers.py --sweep to a PNG beside it.
func drawSweepFile(path string) error {
	var b bytes.Buffer
	if err := drawSweep(&b, &source{dir: filepath.Dir(path)}, filepath.Base(path)); err != nil {
		return err
	}
	return output.WriteFile(strings.TrimSuffix(path, filepath.Ext(path))+".png", b.Bytes())
}

// drawSweep draws a map of widths and batches for each precision of mlpool. A colour is the share of the floor's speed. A
// cross is slower than JAX.
func drawSweep(w io.Writer, s *source, file string) error {
	picture := chart.Picture{
		Title: "Share of the floor's speed, by width and batch",
		Subtitle: plotstyle.Origin(s.notes(file), file, true) +
			". The floor: multiplications, bytes and launches. A point is a shape, of 1 to 16 hidden layers. JAX trained some",
		Columns: 2, Width: 340, Height: 300,
	}
	plain := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, precision := range []string{"tf32", "3xtf32", "fp32", bf16} {
		p := &chart.Plot{Title: precision,
			X: chart.Axis{Low: 1, High: 16384, Log: true, Grid: true, Label: "width (log)", Text: plain},
			Y: chart.Axis{Low: 1, High: 16384, Log: true, Grid: true, Label: "batch (log)", Text: plain},
		}
		for _, band := range shareBands {
			p.Series = append(p.Series, chart.Series{Name: band.name, Color: band.color, Mark: chart.Circle, Size: 4})
		}
		slower := chart.Series{Name: "slower than JAX", Color: chart.Text, Mark: chart.Cross, Size: 4}
		found := false
		for _, r := range s.records(file) {
			if r["framework"] != "ours" || r["precision"] != precision || r["ms"] == "" {
				continue
			}
			of := func(column string) float64 { return s.float(file, column, r, "a row in "+precision) }
			share, i := of("floor_ms")/of("ms"), 0
			for i < len(shareBands)-1 && share < shareBands[i].least {
				i++
			}
			at := chart.Point{X: of("feat_dim"), Y: of("bsz")}
			p.Series[i].Points, found = append(p.Series[i].Points, at), true
			if of("ms") > s.sweepOfJAX(file, r) {
				slower.Points = append(slower.Points, at)
			}
		}
		if found {
			p.Series = append(p.Series, slower)
			picture.Plots = append(picture.Plots, p)
		}
	}
	if len(picture.Plots) == 0 {
		s.fail("%s has no row of mlpool", file)
	}
	if s.err != nil {
		return s.err
	}
	return picture.WritePNG(w)
}

// sweepOfJAX returns the ms that JAX took for a row of mlpool in a precision as exact, or NaN.
func (s *source) sweepOfJAX(file string, row map[string]string) float64 {
	k := key{"framework", "jax", "precision", row["precision"]}
	for _, e := range exactnesses {
		if e.ours == row["precision"] {
			k[3] = e.theirs
		}
	}
	for _, column := range []string{"feat_dim", "bsz", "layers", "gpus", "pixels", "samples"} {
		k = append(k, column, row[column])
	}
	return s.number(file, "ms", k)
}
