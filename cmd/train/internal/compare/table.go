package compare

import (
	"fmt"
	"io"
	"strings"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// Print prints the results of one run, or of several side by side.
func (all Results) Print(w io.Writer, runs []Run, until Target) {
	if len(runs) > 1 {
		all.printComparison(w, runs, until)
	} else if f := all.Runs[0].Figures; f != nil {
		printFigures(w, runs[0], f)
	}
}

// printFigures prints the results of one run.
func printFigures(w io.Writer, r Run, f *figures) {
	segments := ""
	if kind := r.Facts.Segments; kind != "" {
		segments = ", " + kind + " segments"
	}
	epochs := fmt.Sprintf("median of %d epochs after the first", f.Epochs)
	switch all := Whole(r.Records); len(all) {
	case 1:
		epochs = "the only epoch, which includes costs that occur once"
		if after := all[0].ResumedAfter; after > 0 {
			epochs = fmt.Sprintf("the rest of an epoch after %s, which includes costs that occur once", text.Count(after, "step"))
		}
	case 2:
		epochs = "the epoch after the first"
	}
	fmt.Fprint(w, terminal.Folded(r.Facts.Name, 3, fmt.Sprintf("allocator%s, %s:", segments, epochs)))
	spread := ""
	if f.Epochs > 1 {
		spread = fmt.Sprintf(" (%.1f to %.1f)", f.FastestMS, f.SlowestMS)
	}
	fmt.Fprintf(w, "  time      %.1f ms%s, validation %.1f of it, allocator %.2f\n", f.MedianMS, spread, f.ValMS, f.AllocatorMS)
	if f.Hidden != nil {
		fmt.Fprintf(w, "  ranks     %d, all-reduce %.1f µs a step, %.0f %% of it hidden\n", r.Facts.Ranks, *f.AllReduceUS, 100**f.Hidden)
	}
	fmt.Fprintf(w, "  memory    peak %s allocated, %s reserved; %.1f allocations a step\n", text.Bytes(f.PeakAllocated), text.Bytes(f.PeakReserved), f.AllocsPerStep)
	fmt.Fprintf(w, "  accuracy  %.2f %% in validation, at best %.2f %%\n", 100*f.ValAcc, 100*f.BestValAcc)
	printOutliers(w, []Run{r}, [][]rundir.Record{Whole(r.Records)})
}

// printComparison prints a table with a column for each allocator.
func (all Results) printComparison(w io.Writer, runs []Run, until Target) {
	records, steps := compared(runs)
	common := len(records[0])
	if common == 0 {
		fmt.Fprintln(w, "nothing to compare yet: not every allocator has done an epoch")
		return
	}
	var rows [][]string // a name and a cell for each run
	row := func(name string, cell func(i int, f *figures) string) {
		cells := []string{name}
		for i, r := range all.Runs {
			cells = append(cells, cell(i, r.Figures))
		}
		rows = append(rows, cells)
	}
	row("", func(i int, _ *figures) string { return runs[i].Facts.Name })
	row("segments", func(i int, _ *figures) string { return runs[i].Facts.Segments })
	ms := func(_ int, f *figures) string { return fmt.Sprintf("%.2f ms", f.MedianMS) }
	if all.Runs[0].Figures.Epochs == 1 {
		row("epoch", ms)
	} else {
		row("median epoch", ms)
		row("range", func(_ int, f *figures) string { return fmt.Sprintf("%.2f–%.2f", f.FastestMS, f.SlowestMS) })
	}
	difference := func(text func(d stats.Difference) string) func(int, *figures) string {
		return func(i int, _ *figures) string {
			switch d := all.Runs[i].paired; {
			case i == 0:
				return ""
			case !d.Known():
				return "unknown"
			default:
				return text(d)
			}
		}
	}
	known := all.Runs[1].paired.Known()
	row("difference", difference(func(d stats.Difference) string { return fmt.Sprintf("%+.1f %%", d.Percent) }))
	if known {
		row("95 % interval", difference(func(d stats.Difference) string { return fmt.Sprintf("%+.1f to %+.1f", d.Low, d.High) }))
	}
	row("allocator, a step", func(_ int, f *figures) string { return fmt.Sprintf("%.2f µs", f.AllocatorUSPerStep) })
	row("allocations/step", func(_ int, f *figures) string { return fmt.Sprintf("%.1f", f.AllocsPerStep) })
	row("driver calls/step", func(_ int, f *figures) string { return fmt.Sprintf("%.1f", f.DriverCallsPerStep) })
	row("peak allocated", func(_ int, f *figures) string { return text.Bytes(f.PeakAllocated) })
	row("peak reserved", func(_ int, f *figures) string { return text.Bytes(f.PeakReserved) })
	row("accuracy", func(_ int, f *figures) string { return fmt.Sprintf("%.2f %%", 100*f.ValAcc) })
	row("losses, "+text.Count(steps, "step"), func(i int, _ *figures) string { return all.Runs[i].Losses })
	terminal.PrintColumns(w, rows)
	fmt.Fprintln(w, compareNote(common, known))
	until.print(w, all)
	printOutliers(w, runs, records)
}

// compareNote says how many epochs a comparison has, and whether its differences are known.
func compareNote(epochs int, known bool) string {
	text := fmt.Sprintf("medians of %d epochs after the first, interleaved", epochs-1)
	switch epochs {
	case 1:
		text = "one epoch each, the first, which includes costs that occur once"
	case 2:
		text = "one epoch each, the second, interleaved"
	}
	if !known {
		return fmt.Sprintf("%s;\nnot enough epochs to tell which is faster: run at least %d", text, leastEpochs)
	}
	return text + ";\ndifferences of epochs side by side: an interval that includes 0 shows none"
}

// printOutliers warns of epochs far from the others.
func printOutliers(w io.Writer, runs []Run, records [][]rundir.Record) {
	var found []string
	for i, r := range runs {
		times := epochMS(steady(records[i]))
		if n := len(stats.Outliers(times)); n > 0 {
			found = append(found, fmt.Sprintf("%d of %s on %s", n, text.Count(len(times), "epoch"), r.Facts.Name))
		}
	}
	if found != nil {
		fmt.Fprint(w, terminal.Folded("outliers:", 3, strings.Join(found, ", ")+";"), "if something else kept the machine busy, measure again when it is idle\n")
	}
}

// Nats formats a loss.
func Nats(loss rundir.Nats) string {
	if loss < 100 {
		return fmt.Sprintf("%.4f", loss)
	}
	return fmt.Sprintf("%.4g", loss)
}

// Hidden returns the share of the time of exchanges of updates in which the GPU did other work.
func Hidden(r rundir.Record) float64 {
	if r.AllReduceUS == 0 {
		return 0
	}
	return 1 - r.ExposedUS/r.AllReduceUS
}
