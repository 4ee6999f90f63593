package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"mlpool/internal/chart"
	"mlpool/internal/plotstyle"
	"mlpool/internal/scaling"
)

const (
	ranksName    = "ranks"
	ranksLayers  = 4   // hidden layers of trainings of tools/ranks.sh
	ranksPixels  = 784 // of an image
	ranksClasses = 10
)

// A scaled training is one on one GPU, and the same on several.
type scaled struct {
	feat, precision, bsz string
	images               string
	rate, alone          float64       // on one GPU: images a second, µs of a step
	weak, strong         []chart.Point // weak: as many images on each GPU, or if that was not measured, in all
	longer               bool          // weak is of as many images on each GPU
}

// exchange returns the exchange of updates between ranks.
func (c scaled) exchange(s *source, ranks int) scaling.Exchange {
	width, err := strconv.ParseFloat(c.feat, 64)
	if err != nil {
		s.fail("%s: feat_dim is %q, not a number", scalingFile, c.feat)
	}
	return scaling.Of(scaling.Weights(ranksPixels, width, ranksLayers, ranksClasses), ranksLayers, ranks, c.precision == bf16)
}

// scaledTrainings returns the trainings of the file, and the greatest number of ranks. A line of one GPU
// precedes those of several. The points are efficiencies over the number of ranks.
func scaledTrainings(s *source) (all []scaled, most int) {
	for _, r := range s.records(scalingFile) {
		name := r["feat_dim"] + ", " + r["precision"]
		of := func(column string) float64 { return s.float(scalingFile, column, r, name) }
		rate, ranks := of("images_per_s"), of("ranks")
		if ranks == 1 {
			all = append(all, scaled{feat: r["feat_dim"], precision: r["precision"], bsz: r["bsz"], images: r["images"], rate: rate, alone: 1e6 * of("bsz") / rate})
			continue
		}
		if len(all) == 0 || all[len(all)-1].feat+", "+all[len(all)-1].precision != name {
			s.fail("%s: no line of one GPU before %s on %s", scalingFile, name, r["ranks"])
			return nil, 0
		}
		one := &all[len(all)-1]
		most = max(most, int(ranks))
		at := chart.Point{X: ranks, Y: rate / ranks / one.rate}
		longer := r["images"] != one.images
		switch {
		case r["bsz"] != one.bsz:
			one.strong = append(one.strong, at)
		case longer && !one.longer:
			one.weak, one.longer = []chart.Point{at}, true
		case longer == one.longer:
			one.weak = append(one.weak, at)
		}
	}
	return all, most
}

// drawRanks draws the efficiency of trainings on several GPUs, and that of the model of package scaling, for a host of
// eight.
func drawRanks(w io.Writer, s *source) error {
	all, most := scaledTrainings(s)
	all = slices.DeleteFunc(all, func(c scaled) bool { return len(c.weak)+len(c.strong) < 2 }) // measured too seldom
	most = max(most, 8)
	picture := chart.Picture{
		Title:    "Efficiency of several GPUs: images a second, over those of as many times one GPU",
		Subtitle: plotstyle.Origin(s.notes(scalingFile), scalingFile, true) + ". Points: measured. Lines: a model of bytes and latency",
		Columns:  2, Width: 340, Height: 290,
	}
	for _, kind := range []struct {
		title  string
		points func(scaled) []chart.Point
		model  func(e scaling.Exchange, alone float64) float64
	}{
		{"weak: each GPU has this batch", func(c scaled) []chart.Point { return c.weak }, scaling.Exchange.Weak},
		{"strong: all GPUs share this batch", func(c scaled) []chart.Point { return c.strong }, scaling.Exchange.Strong},
	} {
		p := &chart.Plot{
			Title: kind.title, X: chart.Axis{Low: 1, High: float64(most), Closest: 1, Label: "GPUs"}, Y: chart.Axis{High: 105, Grid: true, Label: "efficiency, %"},
			Series: []chart.Series{{Color: chart.Muted, Width: 1, Dashes: guideDashes, Points: []chart.Point{{X: 1, Y: 100}, {X: float64(most), Y: 100}}}},
		}
		for i, c := range all {
			points := kind.points(c)
			if len(points) == 0 {
				continue
			}
			line, marks := chart.Curve(i), chart.Curve(i)
			line.Points, marks.Width, marks.Size = []chart.Point{{X: 1, Y: 100}}, 0, 4
			for n := 2; n <= most; n++ {
				line.Points = append(line.Points, chart.Point{X: float64(n), Y: 100 * kind.model(c.exchange(s, n), c.alone)})
			}
			for _, at := range points {
				marks.Points = append(marks.Points, chart.Point{X: at.X, Y: 100 * at.Y})
				p.Y.High = max(p.Y.High, 105*at.Y)
			}
			line.Name = c.feat + "×" + c.bsz + ", " + c.precision
			p.Series = append(p.Series, line, marks)
		}
		picture.Plots = append(picture.Plots, p)
	}
	if s.err != nil {
		return s.err
	}
	return picture.WritePNG(w)
}

// hosts is the table of what the model of package scaling asks of a network between hosts.
func hosts(s *source) string {
	const hosts, each = 8, 8
	rows := [][]string{{"width × batch of each", "step of one GPU, µs", "efficiency of one host, model", "MB of each adapter a step", "GB/s that hide them"}}
	all, _ := scaledTrainings(s)
	seen := map[[3]string]bool{}
	for _, c := range all {
		shape := [3]string{c.feat, c.bsz, c.precision}
		if seen[shape] || len(c.weak) == 0 {
			continue
		}
		seen[shape] = true
		mega, rate := c.exchange(s, hosts*each).Adapter(hosts, c.alone)
		rows = append(rows, []string{fmt.Sprintf("%s×%s, %s", c.feat, c.bsz, c.precision), digits(c.alone, 3),
			fmt.Sprintf("%.0f %%", 100*c.exchange(s, each).Weak(c.alone)), digits(mega, 2), digits(rate, 2)})
	}
	return markdown(rows...)
}
