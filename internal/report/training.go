package report

import (
	"fmt"
	"math"
	"slices"

	"mlpool/internal/text"
)

// times writes the time of each run, and how the runs differ.
func (d *document) times() {
	if len(d.timed()) == 0 && d.explained() {
		return
	}
	_, each := d.unit()
	d.section("times", "Time "+each, func() {
		if len(d.timed()) == 0 {
			d.missing("No whole " + d.turn() + " was timed: let a run finish one.")
			return
		}
		most, count := d.counted()
		said := "Each dot is " + count + "."
		if most >= leastMedian {
			said = "Each dot is one of " + count + ". The line is the median"
			if most >= leastQuartiles {
				said += "; the bar spans the first to the third quartile"
			}
			said += ". An arrow points to times far beyond the axis."
		}
		d.putf("<figure>%s<figcaption>%s</figcaption></figure>\n", d.spreads(), said)
		if d.untold() == "" && len(d.timed()) > 1 {
			d.putf("<figure>%s<figcaption>Differences compare %ss that ran in turns: the Hodges–Lehmann estimate with its 95 %% interval. If the interval contains zero, the difference is noise. Longer means slower than %s.</figcaption></figure>\n", d.intervals(), d.turn(), d.base())
		}
		d.missing(d.untold())
		d.missing(d.outliers())
	})
}

func (d *document) allocator() {
	if d.Replay {
		return
	}
	d.section("allocator", "Time in the allocator", func() {
		chart := d.bars()
		if chart == "" {
			d.missing("No whole epoch was timed: let a run finish one.")
			return
		}
		d.putf("<figure>%s<figcaption>The host’s time in Alloc and Free, sampled; medians. It lengthens an epoch only if the device waits for the host.</figcaption></figure>\n", chart)
	})
}

// steps writes a step of each run: what it consists of, and when.
func (d *document) steps() {
	length := 0.
	var without []string
	for _, r := range d.Runs {
		if r.Step == nil {
			without = append(without, r.Name)
		} else {
			length = max(length, r.Step.Length)
		}
	}
	if length == 0 && d.explained() {
		return
	}
	d.section("step", "One step", func() {
		switch {
		case length > 0:
			d.timelines(length)
			d.without("a recorded step", without)
		case d.Replay:
			d.missing("A trace has neither kernels nor times. The report of a training shows its step.")
		default:
			d.missing("No step was recorded: a training with a log_dir records one when it ends normally.")
		}
	})
}

func (d *document) timelines(length float64) {
	caption := "Where the time of a step goes, µs"
	var notes []string
	operations := []legend{}
	for _, r := range d.Runs {
		if r.Step == nil {
			continue
		}
		if n := r.Step.Steps; n > 1 {
			caption = fmt.Sprintf("Where the time of a step goes, µs; the one of median length out of %d recorded", n)
		}
		if note := r.Step.Note; note != "" && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
		for _, span := range slices.Concat(r.Step.Kernels, r.Step.Blocks) {
			if l := d.colours.legend(span.Name); !slices.Contains(operations, l) {
				operations = append(operations, l)
			}
		}
	}
	slices.SortFunc(operations, inOrder)
	d.startTable("", "Where the time of a step goes", caption, heads("Allocator", "step", "in kernels", "in gaps", "in calls", "kernels", "calls", "blocks")...)
	for _, r := range d.Runs {
		if r.Step != nil {
			d.row("", r.Name, stepCells(r.Step))
		}
	}
	d.endTable("")
	d.putf("<figure class=\"lanes\">\n")
	d.tools("the steps")
	for i, r := range d.Runs {
		if r.Step != nil {
			d.putf("<h3>%s%s</h3>\n", keyed(d.class(i)), r.Name)
			d.panel(timeline(r, length, d.colours))
		}
	}
	for _, note := range notes {
		d.missing(note)
	}
	d.putf("<figcaption>\n")
	d.legend(append(operations, legend{"gap", "no kernel"}, legend{"alloc-call", "Alloc"}, legend{"free-call", "Free"})...)
	if len(d.Runs) > 1 {
		d.putf("One time scale for all runs.\n")
	}
	d.putf("</figcaption>\n</figure>\n")
}

// losses writes the losses of the first run that has some, and of those that differ from it.
func (d *document) losses() {
	if d.Replay {
		return
	}
	d.section("losses", "Losses", func() {
		var shown []int
		var names, differ []string
		for i, r := range d.Runs {
			if len(r.Losses) == 0 {
				continue
			}
			names = append(names, r.Name)
			if shown == nil {
				shown = append(shown, i)
			} else if at := Disagreement(d.Runs[shown[0]].Losses, r.Losses); at >= 0 {
				shown = append(shown, i)
				differ = append(differ, fmt.Sprintf("%s from step %d on", r.Name, at+1))
			}
		}
		if shown == nil {
			d.missing("No losses were kept: a training with a log_dir keeps them.")
			return
		}
		said := fmt.Sprintf("The losses of %s are identical, bit for bit, in all common steps. One curve shows them all.", text.List(names, "and"))
		switch {
		case len(names) == 1:
			said = fmt.Sprintf("%s, %d steps.", names[0], len(d.Runs[shown[0]].Losses))
		case len(differ) > 0:
			said = fmt.Sprintf("Losses differ from those of %s: %s. The losses of all other runs are identical, bit for bit.", names[0], text.List(differ, "and"))
		}
		chart := d.lossCurves(shown)
		if chart == "" {
			said += " None of them is finite, so there is no curve."
		}
		d.putf("<p>%s</p>\n<figure>%s\n", said, chart)
		if len(shown) > 1 {
			var all []legend
			for _, i := range shown {
				all = append(all, legend{d.class(i), d.Runs[i].Name})
			}
			d.legend(all...)
		}
		d.putf("</figure>\n")
		if chart := d.perEpoch(shown, "Validation loss", func(e Epoch) float64 { return e.ValLoss }); chart != "" {
			d.putf("<div class=\"grid\">\n")
			d.half("Validation loss", "of each epoch", chart)
			d.half("Validation accuracy", "of each epoch, %", d.perEpoch(shown, "Validation accuracy in %", func(e Epoch) float64 { return 100 * e.ValAcc }))
			d.putf("</div>\n")
		}
	})
}

// Disagreement returns the first common step, from 0 on, at which losses differ in any bit, or -1.
func Disagreement(a, b []float32) int {
	for i := range min(len(a), len(b)) {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
