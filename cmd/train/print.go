package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"mlpool/allocator"

	"mlpool/kernels/device"
)

// printEpoch prints the line of an epoch.
func (s *session) printEpoch(r record) {
	name := ""
	if len(s.runners) > 1 {
		name = fmt.Sprintf("%-7s", r.Allocator)
	}
	if r.Interrupted {
		fmt.Fprintf(s.stdout, "%sepoch %d interrupted after %d steps  loss %.4g\n", name, r.Epoch, r.Steps, r.Loss)
		return
	}
	line := fmt.Sprintf("%sepoch %d/%d  loss %.4g  val loss %.4g  val acc %.2f %%",
		name, r.Epoch, s.cfg.Train.NumEpochs, r.Loss, r.ValLoss, 100*r.ValAcc)
	if s.cfg.Train.TimeEpoch {
		line += fmt.Sprintf("  train %.1f ms  val %.1f ms  allocs %d  driver calls %d  in allocator %.2f ms  peak %s of %s",
			r.TrainMS, r.ValMS, r.Allocs, r.DriverCalls, r.AllocatorMS, mebibytes(r.PeakAllocated), mebibytes(r.PeakReserved))
	}
	fmt.Fprintln(s.stdout, line)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// printSummary ends a run: what the median epoch took, or the allocators side
// by side, and where the logs are.
func (s *session) printSummary(elapsed time.Duration) {
	var dirs []string
	trained := false
	for _, r := range s.runners {
		if r.logs != nil {
			dirs = append(dirs, r.logs.dir)
		}
		trained = trained || len(r.records) > 0
	}
	switch {
	case !trained:
		return
	case len(s.runners) > 1:
		s.printComparison()
	default:
		s.printMedian()
	}
	s.printPlans()
	fmt.Fprintf(s.stdout, "%.1f s in all", elapsed.Seconds())
	if dirs != nil {
		fmt.Fprintf(s.stdout, "; logs in %s", strings.Join(dirs, ", "))
	}
	fmt.Fprintln(s.stdout)
}

// printPlans says how close each plan came to the least memory that its step
// can do with, and how often it held.
func (s *session) printPlans() {
	for _, r := range s.runners {
		plan, ok := allocator.As[*allocator.Plan](r.allocs[0])
		if !ok {
			continue
		}
		for _, p := range plan.Plans() {
			fmt.Fprintf(s.stdout, "plan of %d requests: slab of %s, at least %s; replayed %d times, not kept to %d times\n",
				p.Requests, mebibytes(p.Slab), mebibytes(p.LowerBound), p.Replays, p.Mismatches)
		}
	}
}

// printMedian sums up a run on one allocator, unless its first epoch was
// interrupted.
func (s *session) printMedian() {
	r := s.runners[0]
	all := whole(r.records)
	if len(all) == 0 {
		return
	}
	epochs, title := steady(all), "median epoch"
	if len(all) == 1 {
		title = "the only epoch, which pays for what is done once,"
	}
	segments := ""
	if kind := r.segments(); kind != "" {
		segments = ", " + kind + " segments"
	}
	best := quantile(all, 1, func(r record) float64 { return r.ValAcc })
	fmt.Fprintf(s.stdout, "%s allocator%s: %s %.1f ms (%.1f to %.1f), of it %.2f ms in the allocator; best validation accuracy %.2f %%; peak %s allocated, %s reserved\n",
		r.kind, segments, title, median(epochs, record.totalMS), quantile(epochs, 0, record.totalMS), quantile(epochs, 1, record.totalMS),
		median(epochs, allocatorMS), 100*best, mebibytes(last(all).PeakAllocated), mebibytes(last(all).PeakReserved))
}

func allocatorMS(r record) float64 { return r.AllocatorMS }

// printComparison prints a table with a column for each allocator; differences
// are from the first. A run that was cut short is compared as far as all got.
func (s *session) printComparison() {
	common := len(whole(s.runners[0].records))
	steps := len(s.runners[0].losses)
	for _, r := range s.runners {
		common = min(common, len(whole(r.records)))
		steps = min(steps, len(r.losses))
	}
	if common == 0 {
		fmt.Fprintln(s.stdout, "nothing to compare yet: not every allocator has done an epoch")
		return
	}
	epochs := func(r *runner) []record { return steady(whole(r.records)[:common]) }

	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(r *runner) string) {
		fmt.Fprintf(w, "%s\t", name)
		for _, r := range s.runners {
			fmt.Fprintf(w, "%s\t", cell(r))
		}
		fmt.Fprintln(w)
	}
	// number prints the median over the steady epochs.
	number := func(format string, f func(record) float64) func(*runner) string {
		return func(r *runner) string { return fmt.Sprintf(format, median(epochs(r), f)) }
	}
	perStep := func(f func(record) float64) func(record) float64 {
		return func(r record) float64 { return f(r) / float64(r.Steps) }
	}
	base := median(epochs(s.runners[0]), record.totalMS)

	row("", func(r *runner) string { return r.kind })
	row("segments", (*runner).segments)
	row("median epoch", number("%.2f ms", record.totalMS))
	row("fastest to slowest", func(r *runner) string {
		e := epochs(r)
		return fmt.Sprintf("%.2f to %.2f", quantile(e, 0, record.totalMS), quantile(e, 1, record.totalMS))
	})
	row("difference", func(r *runner) string {
		return fmt.Sprintf("%+.1f %%", 100*(median(epochs(r), record.totalMS)/base-1))
	})
	row("in allocator, a step", number("%.2f µs", perStep(func(r record) float64 { return 1000 * r.AllocatorMS })))
	row("allocations, a step", number("%.1f", perStep(func(r record) float64 { return float64(r.Allocs) })))
	row("driver calls, a step", number("%.1f", perStep(func(r record) float64 { return float64(r.DriverCalls) })))
	row("peak allocated", func(r *runner) string { return mebibytes(last(epochs(r)).PeakAllocated) })
	row("peak reserved", func(r *runner) string { return mebibytes(last(epochs(r)).PeakReserved) })
	row("validation accuracy", func(r *runner) string { return fmt.Sprintf("%.2f %%", 100*last(epochs(r)).ValAcc) })
	row(fmt.Sprintf("losses over %.4g epochs", float64(steps)/float64(s.runners[0].trainer.Steps())), func(r *runner) string {
		if r == s.runners[0] {
			return ""
		}
		return agreement(r.losses[:steps], s.runners[0].losses[:steps])
	})
	fmt.Fprintln(s.stdout)
	w.Flush()
	switch common {
	case 1:
		fmt.Fprintln(s.stdout, "one epoch each, the first, which pays for what is done once")
	case 2:
		fmt.Fprintln(s.stdout, "one epoch each, the second, interleaved")
	default:
		fmt.Fprintf(s.stdout, "medians of %d epochs after the first, interleaved\n", common-1)
	}
}

// printProfile prints where the time of a step goes. Shares are of the time
// from one step to the next.
func (s *session) printProfile(kind string, p device.Profile) {
	fmt.Fprintf(s.stdout, "\n%s allocator, a step of %d more, timed operation by operation:\n", kind, p.Steps)
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
	row("gaps between them", "", p.Gaps(), 0, 0)
	row("step", "", p.Step, flops, 0)
	w.Flush()
}

func last[E any](s []E) E { return s[len(s)-1] }
