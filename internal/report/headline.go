package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// headline says in a few sentences what holds the memory of a trace, which runs diverged, which is fastest
// and which reserves least.
func (p Page) headline() []string {
	said := p.diverged()
	if p.Replay {
		said = append(p.explained(), said...)
	}
	timed := p.timed()
	unit, each := p.unit()
	switch untold := p.untold(); {
	case len(timed) == 0 && len(said) > 0 && p.Replay:
		// Only the memory was asked for.
	case len(timed) == 0:
		said = append(said, fmt.Sprintf("No whole %s was timed.", p.turn()))
	case untold != "" && len(said) > 0 && p.Replay:
		// The section of times says so.
	case untold != "":
		said = append(said, untold)
	case len(timed) == 1:
		r := p.Runs[timed[0]]
		said = append(said, fmt.Sprintf("%s takes %s %s %s.", r.Name, digits(stats.Median(r.times())), unit, each))
		if spent := r.median(Epoch.allocatorTime); spent > 0 {
			said = append(said, fmt.Sprintf("Each step spends %s µs in the allocator.", digits(spent)))
		}
	default:
		said = append(said, p.ranking(timed)...)
	}
	if len(p.Unlike) > 0 { // memory is not comparable either
		return said
	}
	return append(said, p.least()...)
}

// explained says what holds most live memory at the peak, what should change, and why the first run reserves
// more than is live.
func (p Page) explained() (said []string) {
	var parts []string
	if len(p.Blocks) > 0 && p.Blocks[0].AtPeak > 0 {
		live := int64(0)
		for _, t := range p.Blocks {
			live += t.AtPeak
		}
		first := p.Blocks[0]
		who := first.name()
		if first.Tag == "" {
			who = "blocks without a tag"
		}
		parts = append(parts, fmt.Sprintf("at the peak, %s of %s live belong to %s", text.Bytes(first.AtPeak), text.Bytes(live), who))
	}
	if len(p.Changes) > 0 {
		if c := p.Changes[0]; c.To < c.From {
			change := fmt.Sprintf("%s are reserved, %s with %s", text.Bytes(c.From), text.Bytes(c.To), clipped(c.Name))
			if len(p.Changes) > 1 {
				change += fmt.Sprintf(", %s with %s", text.Bytes(p.Changes[1].To), clipped(p.Changes[1].Name))
			}
			parts = append(parts, change)
		} else {
			parts = append(parts, "no change that was tried would reserve less")
		}
	}
	if len(parts) > 0 {
		sentence := strings.Join(parts, "; ")
		said = append(said, strings.ToUpper(sentence[:1])+sentence[1:]+".")
	}
	for _, r := range p.Runs {
		if len(r.Moments) == 0 {
			continue
		}
		s := r.Moments[fullest(r.Moments)].Gap
		sentence := fmt.Sprintf("%s reserves %s", r.Name, text.Bytes(s.Reserved))
		if all := largestCauses(s); len(all) > 0 {
			sentence += fmt.Sprintf(", and %s of it is not live. Most of that is %s, %s: %s", text.Bytes(s.Reserved-s.Live), all[0], text.Bytes(s.Bytes[all[0]]), all[0].Text())
		}
		return append(said, sentence+".")
	}
	return said
}

// diverged names the runs that diverged, in a sentence for each epoch.
func (p Page) diverged() (said []string) {
	var epochs []int
	in := map[int][]string{}
	for _, r := range p.Runs {
		if r.Diverged == 0 {
			continue
		}
		if in[r.Diverged] == nil {
			epochs = append(epochs, r.Diverged)
		}
		in[r.Diverged] = append(in[r.Diverged], r.Name)
	}
	for _, epoch := range epochs {
		whose := "its"
		if len(in[epoch]) > 1 {
			whose = "their"
		}
		said = append(said, fmt.Sprintf("%s diverged in epoch %d: %s loss became NaN or infinite.", few(in[epoch], "and"), epoch, whose))
	}
	return said
}

// ranking compares runs that took turns and whose differences from the first are known. It
// calls a run faster than another only if the interval excludes zero.
func (p Page) ranking(timed []int) []string {
	base := p.base()
	best := timed[0]
	for _, i := range timed[1:] {
		if d := p.difference(i); d.Shorter() && (best == timed[0] || d.Percent < p.difference(best).Percent) {
			best = i
		}
	}
	if best != timed[0] {
		return append([]string{p.fasterThanBase(best, timed)}, p.compared(best, timed)...)
	}
	equal, noisy := []string{base}, false
	for _, i := range timed[1:] {
		if d := p.difference(i); d.WithinNoise() {
			equal = append(equal, p.Runs[i].Name)
			noisy = noisy || d.Margin() > worth
		}
	}
	unit, each := p.unit()
	took := fmt.Sprintf("%s %s %s", digits(stats.Median(p.Runs[timed[0]].times())), unit, each)
	var lead string
	switch {
	case len(equal) == 1:
		lead = fmt.Sprintf("%s is the fastest: %s.", base, took)
	case noisy:
		lead = fmt.Sprintf("The %ss vary too much to tell %s apart: the intervals of their differences reach from %s.", p.turn(), few(equal, "and"), p.reach(timed))
	case len(equal) == len(timed):
		lead = fmt.Sprintf("%s take the same time within noise: %s.", few(equal, "and"), took)
	default:
		lead = fmt.Sprintf("%s are equally fast within noise: %s.", few(equal, "and"), took)
	}
	return append([]string{lead}, p.compared(best, timed)...)
}

// fasterThanBase says how much faster than the base the best run is, and names the runs
// that may be as fast.
func (p Page) fasterThanBase(best int, timed []int) string {
	name := p.Runs[best].Name
	fastest := []string{name}
	for _, i := range timed[1:] {
		if i != best && !p.difference(i).Longer() && !p.between(i, best).Longer() {
			fastest = append(fastest, p.Runs[i].Name)
		}
	}
	d := p.difference(best)
	_, each := p.unit()
	with := ""
	if len(fastest) > 1 {
		with = "with " + name + ", "
	}
	return fmt.Sprintf("%s is the fastest: %s%s takes %s less time than with %s (95 %% interval %s).",
		few(fastest, "or"), with, each, plainPercent(d.Percent), p.base(), interval(d))
}

// compared says how the other runs compare with the base. The lead has already named the
// best, and runs that are as fast as a base that is the best.
func (p Page) compared(best int, timed []int) []string {
	var said []string
	for _, i := range timed[1:] {
		d := p.difference(i)
		switch name := p.Runs[i].Name; {
		case i == best:
		case !d.WithinNoise():
			said = append(said, name+" takes "+longer(d.Percent))
		case best == timed[0]:
		case d.Margin() > worth:
			said = append(said, name+" varies too much to tell")
		default:
			said = append(said, name+" takes as long within noise")
		}
	}
	if len(said) == 0 {
		return nil
	}
	more := ""
	if n := len(said) - mostNamed; n > 0 {
		said, more = said[:mostNamed], fmt.Sprintf("; the table has %d more", n)
	}
	return []string{fmt.Sprintf("Compared with %s, %s%s.", p.base(), text.List(said, "and"), more)}
}

// worth is the smallest difference, in percent, that matters. An interval with a larger
// margin may hide it.
const worth = 5

// reach returns the interval around those of all runs that may be as fast as the base.
func (p Page) reach(timed []int) string {
	var whole stats.Difference
	for _, i := range timed[1:] {
		if d := p.difference(i); d.WithinNoise() {
			whole.Low, whole.High = min(whole.Low, d.Low), max(whole.High, d.High)
		}
	}
	return interval(whole)
}

// mostNamed is the largest number of runs that a sentence names.
const mostNamed = 4

// few lists up to mostNamed names, and counts the others.
func few(names []string, word string) string {
	if more := len(names) - mostNamed; more > 1 {
		names = append(names[:mostNamed:mostNamed], fmt.Sprintf("%d more", more))
	}
	return text.List(names, word)
}

// longer writes a difference in words.
func longer(percent float64) string {
	if percent < 0 {
		return plainPercent(percent) + " less"
	}
	return plainPercent(percent) + " longer"
}

// least says which runs reserve least, and how much.
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
		return []string{fmt.Sprintf("It reserves at most %s.", text.Bytes(low.bytes))}
	}
	var names []string
	for _, r := range all {
		if text.Bytes(r.bytes) == text.Bytes(low.bytes) {
			names = append(names, r.name)
		}
	}
	who := text.List(names, "and") + " reserve"
	switch {
	case len(names) == len(all):
		return []string{fmt.Sprintf("All reserve %s.", text.Bytes(low.bytes))}
	case len(names) > mostNamed:
		who = fmt.Sprintf("%d reserve", len(names))
	case len(names) == 1:
		who += "s"
	}
	return []string{fmt.Sprintf("%s least, %s; %s reserves most, %s.", who, text.Bytes(low.bytes), top.name, text.Bytes(top.bytes))}
}
