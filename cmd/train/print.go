package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/paired"
	"mlpool/kernels/device"
)

// lineWidth is the most columns of a line of output: those of a usual terminal.
const lineWidth = 80

// printEpoch prints the line of an epoch. Of what does not fit the last is left out, which the
// summary and the logs have.
func (s *session) printEpoch(r rundir.Record) {
	parts := []string{
		fmt.Sprintf("epoch %d/%d", r.Epoch, s.bound), "loss " + nats(r.Loss),
		fmt.Sprintf("val %s, %.2f %%", nats(r.ValLoss), 100*r.ValAcc),
	}
	if r.Interrupted {
		end := "interrupted"
		if r.Diverged > 0 {
			end = "diverged, ended"
		}
		parts = []string{fmt.Sprintf("epoch %d %s after %s", r.Epoch, end, count(r.Steps, "step")), "loss " + nats(r.Loss)}
	}
	if s.cfg.Train.TimeEpoch {
		parts = append(parts, short(r.TrainMS, 1)+" ms")
		if s.ranks.parallel() {
			parts = append(parts, fmt.Sprintf("all-reduce %s µs", short(r.AllReduceUS, 1)), fmt.Sprintf("%.0f %% hidden", 100*hidden(r)))
		} else {
			parts = append(parts, fmt.Sprintf("alloc %s ms", short(r.AllocatorMS, 2)), fmt.Sprintf("calls %d", r.DriverCalls))
		}
	}
	if len(s.runners) > 1 {
		parts[0] = fmt.Sprintf("%-*s  %s", s.nameWidth(), r.Allocator, parts[0])
	}
	line := parts[0]
	for _, part := range parts[1:] {
		if utf8.RuneCountInString(line)+2+utf8.RuneCountInString(part) > lineWidth {
			break
		}
		line += "  " + part
	}
	_ = s.bar.print(s.stdout, line+"\n") // standard output remembers its error
}

// nats is a loss as text.
func nats(loss rundir.Nats) string {
	if loss < 100 {
		return fmt.Sprintf("%.4f", loss)
	}
	return fmt.Sprintf("%.4g", loss)
}

// hidden is the share of the time in all-reduces in which the GPU did other work.
func hidden(r rundir.Record) float64 {
	if r.AllReduceUS == 0 {
		return 0
	}
	return 1 - r.ExposedUS/r.AllReduceUS
}

// nameWidth is that of the longest name of a runner.
func (s *session) nameWidth() (width int) {
	for _, r := range s.runners {
		width = max(width, len(r.String()))
	}
	return width
}

// short is a number with so many decimals, or with none from 1000 on.
func short(v float64, decimals int) string {
	if v >= 1000 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// size is a number of bytes in the largest unit of which there is one at least.
func size(bytes int64) string {
	const units = "KMGTPE"
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	v, unit := float64(bytes)/(1<<10), 0
	for v >= 1<<10 {
		v /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// count is a number of things: 1 step, 2 steps.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// printSummary ends a run: what the median epoch took, or the allocators side
// by side, and where the run's folder is.
func (s *session) printSummary(elapsed time.Duration) {
	if !slices.ContainsFunc(s.runners, func(r *runner) bool { return len(r.records) > 0 }) {
		return
	}
	all := s.results()
	if len(s.runners) > 1 {
		s.printComparison(all)
	} else if f := all.Runs[0].Figures; f != nil {
		s.printFigures(s.runners[0], f)
	}
	s.printPlans()
	fmt.Fprintf(s.stdout, "%.1f s in all", elapsed.Seconds())
	if s.dir != "" {
		fmt.Fprintf(s.stdout, "; run in %s", s.dir)
	}
	fmt.Fprintln(s.stdout)
}

// printResume says how to resume runs that ended early and have a checkpoint: a command line for
// a shell.
func (s *session) printResume() {
	for _, r := range s.runners {
		if epoch, _ := r.place(); r.folder == nil || !r.saved || r.diverged() || !r.unsaved && epoch >= s.cfg.Train.NumEpochs {
			continue
		}
		command := quoted(os.Args[0]) + " -resume " + quoted(r.folder.Dir)
		if r.String() != customPool {
			command = allocatorEnv + "=" + r.String() + " " + command
		}
		fmt.Fprintf(s.stdout, "go on with: %s\n", command)
	}
}

// quoted is a word as a POSIX shell takes it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+:,=@%", r)
	}
	if !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// printPlans says how close each plan came to the least memory that its step
// can do with, how often it held, and how often it did not.
func (s *session) printPlans() {
	for _, r := range s.runners {
		plan, ok := allocator.As[*allocator.Plan](r.allocs[0])
		if !ok {
			continue
		}
		for _, p := range plan.Plans() {
			fmt.Fprintf(s.stdout, "plan of %s: slab %s, least %s; replayed %d, missed %d\n",
				count(p.Requests, "request"), size(p.Slab), size(p.LowerBound), p.Replays, p.Mismatches)
		}
	}
}

// printFigures sums up a run on one allocator.
func (s *session) printFigures(r *runner, f *figures) {
	segments := ""
	if kind := r.segments(); kind != "" {
		segments = ", " + kind + " segments"
	}
	epochs := fmt.Sprintf("median of %d epochs after the first", f.Epochs)
	switch all := whole(r.records); len(all) {
	case 1:
		epochs = "the only epoch, which pays for what is done once"
		if after := all[0].ResumedAfter; after > 0 {
			epochs = fmt.Sprintf("the rest of an epoch after %s, which pays for what is done once", count(after, "step"))
		}
	case 2:
		epochs = "the epoch after the first"
	}
	fmt.Fprint(s.stdout, folded(r.String(), 3, fmt.Sprintf("allocator%s, %s:", segments, epochs)))
	spread := ""
	if f.Epochs > 1 {
		spread = fmt.Sprintf(" (%.1f to %.1f)", f.FastestMS, f.SlowestMS)
	}
	fmt.Fprintf(s.stdout, "  time      %.1f ms%s, validation %.1f of it, allocator %.2f\n", f.MedianMS, spread, f.ValMS, f.AllocatorMS)
	if f.Hidden != nil {
		fmt.Fprintf(s.stdout, "  ranks     %d, all-reduce %.1f µs a step, %.0f %% of it hidden\n", s.ranks.size(), *f.AllReduceUS, 100**f.Hidden)
	}
	fmt.Fprintf(s.stdout, "  memory    peak %s allocated, %s reserved; %.1f allocations a step\n", size(f.PeakAllocated), size(f.PeakReserved), f.AllocsPerStep)
	fmt.Fprintf(s.stdout, "  accuracy  %.2f %% in validation, at best %.2f %%\n", 100*f.ValAcc, 100*f.BestValAcc)
	s.printOutliers([][]rundir.Record{whole(r.records)})
}

// printComparison prints a table with a column for each allocator; differences
// are from the first. A run that was cut short is compared as far as all got.
func (s *session) printComparison(all results) {
	records, steps := s.compared()
	common := len(records[0])
	if common == 0 {
		fmt.Fprintln(s.stdout, "nothing to compare yet: not every allocator has done an epoch")
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
	row("", func(i int, _ *figures) string { return s.runners[i].String() })
	row("segments", func(i int, _ *figures) string { return s.runners[i].segments() })
	ms := func(_ int, f *figures) string { return fmt.Sprintf("%.2f ms", f.MedianMS) }
	if all.Runs[0].Figures.Epochs == 1 {
		row("epoch", ms)
	} else {
		row("median epoch", ms)
		row("range", func(_ int, f *figures) string { return fmt.Sprintf("%.2f–%.2f", f.FastestMS, f.SlowestMS) })
	}
	difference := func(text func(d paired.Difference) string) func(int, *figures) string {
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
	row("difference", difference(func(d paired.Difference) string { return fmt.Sprintf("%+.1f %%", d.Percent) }))
	if known {
		row("95 % interval", difference(func(d paired.Difference) string { return fmt.Sprintf("%+.1f to %+.1f", d.Low, d.High) }))
	}
	row("allocator, a step", func(_ int, f *figures) string { return fmt.Sprintf("%.2f µs", f.AllocatorUSPerStep) })
	row("allocations/step", func(_ int, f *figures) string { return fmt.Sprintf("%.1f", f.AllocsPerStep) })
	row("driver calls/step", func(_ int, f *figures) string { return fmt.Sprintf("%.1f", f.DriverCallsPerStep) })
	row("peak allocated", func(_ int, f *figures) string { return size(f.PeakAllocated) })
	row("peak reserved", func(_ int, f *figures) string { return size(f.PeakReserved) })
	row("accuracy", func(_ int, f *figures) string { return fmt.Sprintf("%.2f %%", 100*f.ValAcc) })
	row("losses, "+count(steps, "step"), func(i int, _ *figures) string { return all.Runs[i].Losses })
	printColumns(s.stdout, rows)
	fmt.Fprintln(s.stdout, compareNote(common, known))
	s.printUntil(all)
	s.printOutliers(records)
}

// printColumns prints rows of a name and cells, the columns one below another where they do not fit
// side by side.
func printColumns(stdout io.Writer, rows [][]string) {
	width := func(column int) (most int) {
		for _, cells := range rows {
			most = max(most, utf8.RuneCountInString(cells[column]))
		}
		return most
	}
	for from := 1; from < len(rows[0]); {
		to, columns := from+1, 2+width(0)+2+width(from)
		for to < len(rows[0]) && columns+2+width(to) <= lineWidth {
			columns += 2 + width(to)
			to++
		}
		w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w)
		for _, cells := range rows {
			fmt.Fprintf(w, "%s\t%s\t\n", cells[0], strings.Join(cells[from:to], "\t"))
		}
		w.Flush()
		from = to
	}
}

// compareNote says what the figures of a comparison are of, and whether its differences
// are known.
func compareNote(epochs int, known bool) string {
	text := fmt.Sprintf("medians of %d epochs after the first, interleaved", epochs-1)
	switch epochs {
	case 1:
		text = "one epoch each, the first, which pays for what is done once"
	case 2:
		text = "one epoch each, the second, interleaved"
	}
	if !known {
		return fmt.Sprintf("%s;\nnot enough epochs to tell which is faster: run at least %d", text, leastEpochs)
	}
	return text + ";\ndifferences of epochs side by side: an interval that includes 0 shows none"
}

// printOutliers warns of epochs far from the others, given the records of each runner.
func (s *session) printOutliers(records [][]rundir.Record) {
	var found []string
	for i, r := range s.runners {
		times := epochMS(steady(records[i]))
		if n := len(paired.Outliers(times)); n > 0 {
			found = append(found, fmt.Sprintf("%d of %s on %s", n, count(len(times), "epoch"), r))
		}
	}
	if found != nil {
		fmt.Fprint(s.stdout, folded("outliers:", 3, strings.Join(found, ", ")+";"), "if something else kept the machine busy, measure again when it is idle\n")
	}
}

// printProfile prints where the time of a step goes. Shares are of the time
// from one step to the next. Only on a GPU do operations overlap.
func (s *session) printProfile(name string, p device.Profile, gpu bool) {
	fmt.Fprintf(s.stdout, "\n%s allocator, a step of %d more, timed operation by operation:\n", name, p.Steps)
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name, count string, t time.Duration, flops, bytes float64) {
		rate := func(amount, unit float64) string {
			if amount == 0 || t <= 0 {
				return ""
			}
			return fmt.Sprintf("%.1f", amount/t.Seconds()/unit)
		}
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%s\t%s\t%.1f %%\t\n", name, count, float64(t)/float64(time.Microsecond),
			rate(flops, 1e9), rate(bytes, 1e9), 100*float64(t)/float64(p.Step))
	}
	fmt.Fprintln(w, "operation\tcount\tµs\tGFLOP/s\tGB/s\tshare\t")
	var flops float64
	for _, o := range p.Ops {
		row(o.Name+" "+o.Shape, fmt.Sprint(o.Count), o.Time, o.FLOPs, o.Bytes)
		flops += o.FLOPs
	}
	switch {
	case p.Gaps() >= 0:
		row("gaps between them", "", p.Gaps(), 0, 0)
	case gpu:
		fmt.Fprintln(w, "gaps between them: none, operations overlap\t\t\t\t\t\t")
	default:
		fmt.Fprintln(w, "gaps between them: none, within noise\t\t\t\t\t\t")
	}
	row("step", "", p.Step, flops, 0)
	w.Flush()
}

func last[E any](s []E) E { return s[len(s)-1] }
