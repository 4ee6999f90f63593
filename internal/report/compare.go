package report

import (
	"fmt"
	"math"
	"slices"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// times are what a run is compared by: milliseconds of each steady epoch, or
// nanoseconds of a call in each replay.
func (r Run) times() []float64 {
	if len(r.Epochs) == 0 {
		return r.CallNS
	}
	return r.each(func(e Epoch) float64 { return e.TrainMS + e.ValMS })
}

// each is what f finds in each epoch that is not of warm-up; with no others, in these.
func (r Run) each(f func(Epoch) float64) []float64 {
	epochs := slices.DeleteFunc(slices.Clone(r.Epochs), func(e Epoch) bool { return e.Warmup })
	if len(epochs) == 0 {
		epochs = r.Epochs
	}
	var values []float64
	for _, e := range epochs {
		values = append(values, f(e))
	}
	return values
}

// median is the middle of what f finds in the epochs, NaN where there are none.
func (r Run) median(f func(Epoch) float64) float64 {
	if len(r.Epochs) == 0 {
		return math.NaN()
	}
	return stats.Median(r.each(f))
}

// allocatorTime is the host's time in the allocator, in microseconds a step.
func (e Epoch) allocatorTime() float64 { return 1000 * e.AllocatorMS / float64(max(e.Steps, 1)) }

func (e Epoch) driverCalls() float64 { return float64(e.DriverCalls) / float64(max(e.Steps, 1)) }

// peaks are the most bytes that were allocated, or live in a replay, and reserved; 0: unknown.
func (r Run) peaks() (allocated, reserved int64) {
	for _, e := range r.Epochs {
		allocated, reserved = max(allocated, e.PeakAllocated), max(reserved, e.PeakReserved)
	}
	if len(r.Epochs) == 0 {
		for _, m := range r.Memory {
			allocated, reserved = max(allocated, m.Live), max(reserved, m.Reserved)
		}
	}
	return allocated, reserved
}

// unit is what times are in, and per what they are spent.
func (p Page) unit() (unit, per string) {
	if p.Replay {
		return "ns", "call"
	}
	return "ms", "epoch"
}

// article is a or an.
func (p Page) article() string {
	if p.Replay {
		return "a"
	}
	return "an"
}

// turn is what a run does in one turn.
func (p Page) turn() string {
	if p.Replay {
		return "replay"
	}
	return "epoch"
}

// timed are the runs that were timed, by their numbers. The first is the base: what
// differences are from.
func (p Page) timed() (runs []int) {
	for i, r := range p.Runs {
		if len(r.times()) > 0 {
			runs = append(runs, i)
		}
	}
	return runs
}

// base is the name of the run that differences are from; empty: none was timed.
func (p Page) base() string {
	for _, i := range p.timed() {
		return p.Runs[i].Name
	}
	return ""
}

// between is the difference of run i from run j. It is not known of runs that did not
// take turns.
func (p Page) between(i, j int) stats.Difference {
	if !p.Turns {
		return stats.Difference{}
	}
	return stats.Compare(p.Runs[j].times(), p.Runs[i].times())
}

// difference is that of run i from the base, of which none is known.
func (p Page) difference(i int) stats.Difference {
	timed := p.timed()
	if len(timed) == 0 || i == timed[0] {
		return stats.Difference{}
	}
	return p.between(i, timed[0])
}

// untold says why nothing tells which of several runs is faster; it is empty where all
// differences from the base have an interval.
func (p Page) untold() string {
	timed := p.timed()
	switch {
	case len(timed) < 2:
		return ""
	case len(p.Unlike) > 0:
		var keys []string
		for _, f := range p.Unlike {
			keys = append(keys, fmt.Sprintf("%s (%s)", f.Name, f.Value))
		}
		return fmt.Sprintf("These runs are not comparable: they differ in %s.", text.List(keys, "and"))
	case !p.Turns:
		return "These runs did not take turns, so that nothing tells which is faster: the machine may have changed between them. train -compare lets allocators take turns."
	case !slices.ContainsFunc(timed[1:], func(i int) bool { return !p.difference(i).Known() }):
		return ""
	case p.Replay:
		return fmt.Sprintf("Not enough replays to tell which is faster: run at least %d.", stats.LeastPairs)
	}
	return fmt.Sprintf("Not enough epochs to tell which is faster: run at least %d, as the first does not count.", stats.LeastPairs+1)
}

// counted returns the most times that there are of a run, and says how many there are for the
// table of results and for the chart of times.
func (p Page) counted() (most int, caption, chart string) {
	least, first := math.MaxInt, true
	for _, i := range p.timed() {
		r := p.Runs[i]
		n := len(r.times())
		most, least = max(most, n), min(least, n)
		first = first && !p.Replay && !slices.ContainsFunc(r.Epochs, func(e Epoch) bool { return !e.Warmup })
	}
	const pays = "which pays for what is done once"
	switch {
	case most < leastMedian && first:
		return most, "Of the first epoch, " + pays, "Each dot is the first epoch, the only one that was timed, " + pays + "."
	case most < leastMedian:
		return most, "Of one " + p.turn(), fmt.Sprintf("Each dot is the one %s that was timed.", p.turn())
	}
	count := text.Count(most, p.turn())
	if !p.Replay {
		count += " after the first, " + pays
	}
	if least < most {
		count += fmt.Sprintf(" (or as few as %d)", least)
	}
	line := "The line is the median."
	if most >= leastQuartiles {
		line = "The bar reaches from the first quartile to the third, the line is the median."
	}
	return most, "Medians of " + count, fmt.Sprintf("Each dot is one of %s. %s An arrow points to what is far beyond the axis.", count, line)
}

// outliers says how many times are far from the others; it is empty where none is.
func (p Page) outliers() string {
	var found []string
	for _, r := range p.Runs {
		if n := len(stats.Outliers(r.times())); n > 0 {
			found = append(found, fmt.Sprintf("%d of %s of %s", n, text.Count(len(r.times()), p.turn()), r.Name))
		}
	}
	if found == nil {
		return ""
	}
	return fmt.Sprintf("Outliers: %s. If something else kept the machine busy, measure again when it is idle.", text.List(found, "and"))
}
