package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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
	return quantile(r.each(f), 0.5)
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

// difference is that of a run, if it is known.
func (p Page) difference(name string) (Difference, bool) {
	i := slices.IndexFunc(p.Differences, func(d Difference) bool { return d.Name == name })
	if i < 0 {
		return Difference{}, false
	}
	return p.Differences[i], true
}

// headline says in one to three sentences who is fastest and who reserves least.
func (p Page) headline() []string {
	var timed []Run
	for _, r := range p.Runs {
		if len(r.times()) > 0 {
			timed = append(timed, r)
		}
	}
	unit, per := p.unit()
	var said []string
	switch {
	case len(timed) == 0:
		said = []string{fmt.Sprintf("No whole %s was timed.", per)}
	case len(p.Runs) == 1:
		said = []string{fmt.Sprintf("%s takes %s %s %s %s.", timed[0].Name, digits(quantile(timed[0].times(), 0.5)), unit, p.article(), per)}
		if spent := timed[0].median(Epoch.allocatorTime); spent > 0 {
			said = append(said, fmt.Sprintf("Of each step %s µs are spent in the allocator.", digits(spent)))
		}
	case p.compared():
		said = p.byDifference()
	default:
		said = p.bySpread(timed)
	}
	return append(said, p.least()...)
}

// compared says whether all differences from the first run are known.
func (p Page) compared() bool {
	return len(p.Runs) > 1 && !slices.ContainsFunc(p.Runs[1:], func(r Run) bool {
		_, known := p.difference(r.Name)
		return !known
	})
}

// byDifference compares runs that took turns.
func (p Page) byDifference() []string {
	base := p.Runs[0].Name
	took := digits(quantile(p.Runs[0].times(), 0.5)) + " ms"
	var noise []string
	best := Difference{Name: base}
	for _, d := range p.Differences {
		if d.Low <= 0 && d.Top >= 0 {
			noise = append(noise, d.Name)
		} else if d.Percent < best.Percent {
			best = d
		}
	}
	var rest []string // what takes another time than the first, and is not the best
	for _, d := range p.Differences {
		if d.Name != best.Name && !slices.Contains(noise, d.Name) {
			rest = append(rest, d.Name+" takes "+longer(d.Percent))
		}
	}
	var said []string
	switch {
	case best.Name != base:
		said = append(said, fmt.Sprintf("%s is the fastest: an epoch takes %s less time than with %s (95 %% interval %s).",
			best.Name, plainPercent(best.Percent), base, best.interval()))
		for _, name := range noise {
			rest = append(rest, name+" takes as long within noise")
		}
	case len(noise) == 0:
		said = append(said, fmt.Sprintf("%s is the fastest: %s an epoch.", base, took))
	case len(rest) == 0 && noisy(p.Differences):
		return []string{fmt.Sprintf("Epochs vary too much to tell %s apart: the intervals of their differences reach from %s.",
			list(append([]string{base}, noise...)), reach(p.Differences))}
	case len(rest) == 0:
		return []string{fmt.Sprintf("%s take the same time within noise: %s an epoch.", list(append([]string{base}, noise...)), took)}
	default:
		said = append(said, fmt.Sprintf("%s are equally fast within noise: %s an epoch.", list(append([]string{base}, noise...)), took))
	}
	if len(rest) > mostNamed {
		rest = append(rest[:mostNamed:mostNamed], fmt.Sprintf("%d more differ too", len(rest)-mostNamed))
	}
	if len(rest) > 0 {
		said = append(said, fmt.Sprintf("Compared with %s, %s.", base, list(rest)))
	}
	return said
}

// noisy says whether an interval is so wide that a difference worth knowing hides in it.
func noisy(all []Difference) bool {
	const worth = 5 // percent
	return slices.ContainsFunc(all, func(d Difference) bool { return d.Low < -worth || d.Top > worth })
}

// reach is the interval around all intervals.
func reach(all []Difference) string {
	whole := all[0]
	for _, d := range all {
		whole.Low, whole.Top = min(whole.Low, d.Low), max(whole.Top, d.Top)
	}
	return whole.interval()
}

// mostNamed is how many runs a sentence names.
const mostNamed = 4

// longer says how a time compares that is so many percent longer.
func longer(percent float64) string {
	switch {
	case percent >= 100:
		return times(100+percent, 100) + " long"
	case percent < 0:
		return plainPercent(percent) + " less"
	}
	return plainPercent(percent) + " longer"
}

// bySpread compares runs that did not take turns, by their medians. A run is not told
// apart from the fastest where the middle halves of their times overlap: one time that is
// far off says nothing. Nor does one time each.
func (p Page) bySpread(timed []Run) []string {
	unit, per := p.unit()
	middle := func(r Run) float64 { return quantile(r.times(), 0.5) }
	fastest := slices.MinFunc(timed, func(a, b Run) int { return cmp.Compare(middle(a), middle(b)) })
	slowest := slices.MaxFunc(timed, func(a, b Run) int { return cmp.Compare(middle(a), middle(b)) })
	repeated := slices.ContainsFunc(timed, func(r Run) bool { return len(r.times()) > 1 })
	equal := []string{fastest.Name}
	for _, r := range timed {
		if r.Name != fastest.Name && quantile(r.times(), 0.25) <= quantile(fastest.times(), 0.75) {
			equal = append(equal, r.Name)
		}
	}
	took := fmt.Sprintf("%s %s %s %s", digits(middle(fastest)), unit, p.article(), per)
	turn := "epoch"
	if p.Replay {
		turn = "replay"
	}
	var said, doubt string
	switch {
	case len(equal) == 1 && !repeated:
		said = fmt.Sprintf("In one %s each, %s took the least time: %s", turn, fastest.Name, took)
		doubt = fmt.Sprintf("More %ss show whether that is noise.", turn)
	case len(equal) == 1:
		said = fmt.Sprintf("%s is the fastest: %s", fastest.Name, took)
	case len(equal) <= mostNamed:
		said = fmt.Sprintf("%s are equally fast within their spread: %s", list(equal), took)
	default:
		said = fmt.Sprintf("%s is the fastest, %s; the times of %d others overlap its own", fastest.Name, took, len(equal)-1)
	}
	if !slices.Contains(equal, slowest.Name) {
		said += fmt.Sprintf("; %s takes %s", slowest.Name, longer(100*(middle(slowest)/middle(fastest)-1)))
	}
	if doubt == "" {
		return []string{said + "."}
	}
	return []string{said + ".", doubt}
}

// least says who reserves least, and how much.
func (p Page) least() []string {
	type reserve struct {
		name  string
		bytes int64
	}
	var all []reserve
	for _, r := range p.Runs {
		if _, bytes := r.peaks(); bytes > 0 {
			all = append(all, reserve{r.Name, bytes})
		}
	}
	if len(all) == 0 {
		return nil
	}
	by := func(a, b reserve) int { return cmp.Compare(a.bytes, b.bytes) }
	low, top := slices.MinFunc(all, by), slices.MaxFunc(all, by)
	if len(all) == 1 {
		return []string{fmt.Sprintf("It reserves %s at most.", bytesText(low.bytes))}
	}
	var names []string
	for _, r := range all {
		if bytesText(r.bytes) == bytesText(low.bytes) {
			names = append(names, r.name)
		}
	}
	switch {
	case len(names) == len(all):
		return []string{fmt.Sprintf("All reserve %s.", bytesText(low.bytes))}
	case len(names) > mostNamed:
		return []string{fmt.Sprintf("%d reserve least, %s; %s reserves most, %s.", len(names), bytesText(low.bytes), top.name, bytesText(top.bytes))}
	case len(names) > 1:
		return []string{fmt.Sprintf("%s reserve least, %s; %s reserves most, %s.", list(names), bytesText(low.bytes), top.name, bytesText(top.bytes))}
	}
	return []string{fmt.Sprintf("%s reserves least, %s; %s reserves most, %s.", low.name, bytesText(low.bytes), top.name, bytesText(top.bytes))}
}
