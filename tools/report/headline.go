package report

import (
	"cmp"
	"fmt"
	"slices"

	"mlpool/internal/paired"
)

// headline says in a few sentences which runs diverged, who is fastest and who reserves least.
func (p Page) headline() []string {
	said := p.diverged()
	timed := p.timed()
	unit, per := p.unit()
	switch untold := p.untold(); {
	case len(timed) == 0:
		said = append(said, fmt.Sprintf("No whole %s was timed.", per))
	case untold != "":
		said = append(said, untold)
	case len(timed) == 1:
		r := p.Runs[timed[0]]
		said = append(said, fmt.Sprintf("%s takes %s %s %s %s.", r.Name, digits(quantile(r.times(), 0.5)), unit, p.article(), per))
		if spent := r.median(Epoch.allocatorTime); spent > 0 {
			said = append(said, fmt.Sprintf("Of each step %s µs are spent in the allocator.", digits(spent)))
		}
	default:
		said = append(said, p.ranking(timed)...)
	}
	if len(p.Unlike) > 0 { // nor is memory comparable
		return said
	}
	return append(said, p.least()...)
}

// diverged says which runs did not end well.
func (p Page) diverged() (said []string) {
	for _, r := range p.Runs {
		if r.Diverged > 0 {
			said = append(said, fmt.Sprintf("%s diverged in epoch %d: its loss became NaN or infinite.", r.Name, r.Diverged))
		}
	}
	return said
}

// ranking compares runs that took turns, of which all differences from the first are known.
// It calls a run faster than another one only if an interval says so.
func (p Page) ranking(timed []int) []string {
	base := p.base()
	best := timed[0]
	var noise []string
	for _, i := range timed[1:] {
		d := p.difference(i)
		if d.WithinNoise() {
			noise = append(noise, p.Runs[i].Name)
		}
		if d.Shorter() && (best == timed[0] || d.Percent < p.difference(best).Percent) {
			best = i
		}
	}
	var rest []string // what takes another time than the base, and is not the best
	for _, i := range timed[1:] {
		d := p.difference(i)
		switch name := p.Runs[i].Name; {
		case i == best:
		case !d.WithinNoise():
			rest = append(rest, name+" takes "+longer(d.Percent))
		case best != timed[0]:
			rest = append(rest, name+" takes as long within noise")
		}
	}
	unit, per := p.unit()
	took := fmt.Sprintf("%s %s %s %s", digits(quantile(p.Runs[timed[0]].times(), 0.5)), unit, p.article(), per)
	equal := few(append([]string{base}, noise...))
	var said []string
	switch {
	case best != timed[0]:
		said = p.fasterThanBase(best, timed)
	case len(noise) == 0:
		said = append(said, fmt.Sprintf("%s is the fastest: %s.", base, took))
	case len(rest) == 0 && p.noisy(timed):
		return []string{fmt.Sprintf("The %ss vary too much to tell %s apart: the intervals of their differences reach from %s.", p.turn(), equal, p.reach(timed))}
	case len(rest) == 0:
		return []string{fmt.Sprintf("%s take the same time within noise: %s.", equal, took)}
	default:
		said = append(said, fmt.Sprintf("%s are equally fast within noise: %s.", equal, took))
	}
	if len(rest) > mostNamed {
		rest = append(rest[:mostNamed:mostNamed], fmt.Sprintf("%d more differ too", len(rest)-mostNamed))
	}
	if len(rest) > 0 {
		said = append(said, fmt.Sprintf("Compared with %s, %s.", base, list(rest)))
	}
	return said
}

// fasterThanBase says how much faster than the base the best run is, and which others
// are as fast as that.
func (p Page) fasterThanBase(best int, timed []int) []string {
	name := p.Runs[best].Name
	equal := []string{name}
	for _, i := range timed[1:] {
		if i != best && !p.between(i, best).Longer() {
			equal = append(equal, p.Runs[i].Name)
		}
	}
	d := p.difference(best)
	_, per := p.unit()
	less := fmt.Sprintf("%s %s takes %s less time than with %s (95 %% interval %s)", p.article(), per, plainPercent(d.Percent), p.base(), interval(d))
	if len(equal) == 1 {
		return []string{fmt.Sprintf("%s is the fastest: %s.", name, less)}
	}
	return []string{fmt.Sprintf("%s are the fastest, and equally fast within noise: with %s, %s.", few(equal), name, less)}
}

// noisy says whether an interval is so wide that a difference worth knowing hides in it.
func (p Page) noisy(timed []int) bool {
	const worth = 5 // percent
	return slices.ContainsFunc(timed[1:], func(i int) bool { return p.difference(i).Margin() > worth })
}

// reach is the interval around all intervals.
func (p Page) reach(timed []int) string {
	var whole paired.Difference
	for _, i := range timed[1:] {
		d := p.difference(i)
		whole.Low, whole.High = min(whole.Low, d.Low), max(whole.High, d.High)
	}
	return interval(whole)
}

// mostNamed is how many runs a sentence names.
const mostNamed = 4

// few lists names, and counts those beyond mostNamed.
func few(names []string) string {
	if more := len(names) - mostNamed; more > 1 {
		names = append(names[:mostNamed:mostNamed], fmt.Sprintf("%d more", more))
	}
	return list(names)
}

// longer says how a time compares that is longer by a percentage, or shorter.
func longer(percent float64) string {
	if percent < 0 {
		return plainPercent(percent) + " less"
	}
	return plainPercent(percent) + " longer"
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
