package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// times returns what runs are compared by: the milliseconds of each steady epoch, or the
// nanoseconds of a call in each replay.
func (r Run) times() []float64 {
	if len(r.Epochs) == 0 {
		return r.CallNS
	}
	return r.each(func(e Epoch) float64 { return e.TrainMS + e.ValMS })
}

// each returns f of each epoch after the warm-up, or of the warm-up if there are no others.
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

// median returns the median of f over the epochs, or NaN without any.
func (r Run) median(f func(Epoch) float64) float64 {
	if len(r.Epochs) == 0 {
		return math.NaN()
	}
	return stats.Median(r.each(f))
}

// allocatorTime returns the host's time in the allocator, in microseconds a step.
func (e Epoch) allocatorTime() float64 { return 1000 * e.AllocatorMS / float64(max(e.Steps, 1)) }

func (e Epoch) driverCalls() float64 { return float64(e.DriverCalls) / float64(max(e.Steps, 1)) }

// peaks returns the peak bytes allocated, or live in a replay, and reserved. 0 is unknown.
func (r Run) peaks() (allocated, reserved int64) {
	if len(r.Epochs) == 0 {
		return highest(r.Memory)
	}
	for _, e := range r.Epochs {
		allocated, reserved = max(allocated, e.PeakAllocated), max(reserved, e.PeakReserved)
	}
	return allocated, reserved
}

// unit returns the unit of times, and what each is the time of.
func (p Page) unit() (unit, each string) {
	if p.Replay {
		return "ns", "a call"
	}
	return "ms", "an epoch"
}

// turn names what a run does in one turn.
func (p Page) turn() string {
	if p.Replay {
		return "replay"
	}
	return "epoch"
}

// timed returns the indices of the runs that were timed. The first is the base of all
// differences.
func (p Page) timed() (runs []int) {
	for i, r := range p.Runs {
		if len(r.times()) > 0 {
			runs = append(runs, i)
		}
	}
	return runs
}

// base returns the name of the base, or "" if no run was timed.
func (p Page) base() string {
	for _, i := range p.timed() {
		return p.Runs[i].Name
	}
	return ""
}

// between returns the difference of run i from run j. It is known only if they took turns.
func (p Page) between(i, j int) stats.Difference {
	if !p.Turns {
		return stats.Difference{}
	}
	return stats.Compare(p.Runs[j].times(), p.Runs[i].times())
}

// difference returns the difference of run i from the base. That of the base is unknown.
func (p Page) difference(i int) stats.Difference {
	timed := p.timed()
	if len(timed) == 0 || i == timed[0] {
		return stats.Difference{}
	}
	return p.between(i, timed[0])
}

// untold says why the runs cannot be ranked, or "" if all differences from the base have
// an interval.
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
		return "These runs did not take turns, so they cannot be ranked: the machine may have changed between them. train -compare lets allocators take turns."
	case !slices.ContainsFunc(timed[1:], func(i int) bool { return !p.difference(i).Known() }):
		return ""
	case p.Replay:
		return fmt.Sprintf("Not enough replays to tell which is faster: run at least %d.", stats.LeastPairs)
	}
	return fmt.Sprintf("Not enough epochs to tell which is faster: run at least %d, since the first does not count.", stats.LeastPairs+1)
}

// counted returns the largest number of times of a run, and describes the times.
func (p Page) counted() (most int, said string) {
	least, first := math.MaxInt, true
	for _, i := range p.timed() {
		r := p.Runs[i]
		n := len(r.times())
		most, least = max(most, n), min(least, n)
		first = first && !p.Replay && !slices.ContainsFunc(r.Epochs, func(e Epoch) bool { return !e.Warmup })
	}
	const pays = ", which includes one-time work"
	switch {
	case most < leastMedian && first:
		return most, "the first epoch" + pays
	case most < leastMedian:
		return most, "the only " + p.turn() + " timed"
	}
	said = text.Count(most, p.turn())
	if !p.Replay {
		said += " after the first" + pays
	}
	if least < most {
		said += fmt.Sprintf(" (for some runs %d)", least)
	}
	return most, said
}

// outliers counts the times far from the others, or returns "".
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
	return fmt.Sprintf("Outliers: %s. If other work kept the machine busy, measure again when it is idle.", text.List(found, "and"))
}

// digits writes a number with three significant digits, or with all before the point.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	decimals := 2
	if a := math.Abs(v); a >= 99.95 {
		decimals = 0
	} else if a >= 9.995 {
		decimals = 1
	}
	return strings.Replace(strconv.FormatFloat(v, 'f', decimals, 64), "-", "−", 1)
}

// percent writes a difference with its sign.
func percent(v float64) string {
	sign := "+"
	if v < 0 {
		sign = "−"
	}
	return sign + plainPercent(v)
}

func plainPercent(v float64) string { return strconv.FormatFloat(math.Abs(v), 'f', 1, 64) + " %" }

// interval writes the 95 % interval of a difference.
func interval(d stats.Difference) string {
	low, top := percent(d.Low), percent(d.High)
	return strings.TrimSuffix(low, " %") + " to " + top
}
