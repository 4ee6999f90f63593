package report

import (
	"fmt"
	"strings"

	"mlpool/internal/gap"
	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// headline says which runs diverged, what would reserve less, and which run is fastest. What the table below it
// shows is not said again.
func (p Page) headline() []string {
	said := p.diverged()
	if p.Replay {
		said = append(p.lessMemory(), said...)
	}
	timed := p.timed()
	unit, each := p.unit()
	switch untold := p.untold(); {
	case (len(timed) == 0 || untold != "") && len(said) > 0 && p.Replay:
		// Only the memory was asked for, or the section of times says so.
	case len(timed) == 0:
		said = append(said, fmt.Sprintf("No whole %s was timed.", p.turn()))
	case untold != "":
		said = append(said, untold)
	case len(timed) == 1:
		r := p.Runs[timed[0]]
		said = append(said, fmt.Sprintf("%s takes %s %s %s.", r.Name, digits(stats.Median(r.times())), unit, each))
	default:
		said = append(said, p.ranking(timed))
	}
	return said
}

// Answer says where the memory goes and what would help, in one line.
func (p Page) Answer() string { return strings.Join(p.lessMemory(), " ") }

// lessMemory says what explains most of the memory that the first run reserves, and which change saves most.
func (p Page) lessMemory() (said []string) {
	if r, m := p.peak(); m != nil {
		said = append(said, p.mostly(r.Name, m.Gap))
	}
	if len(p.Changes) > 0 {
		if c := p.Changes[0]; c.To < c.From {
			said = append(said, fmt.Sprintf("What would help most: %s. It would reserve %s instead of PyTorch's %s.", clipped(c.Name), text.Bytes(c.To), text.Bytes(c.From)))
		} else {
			said = append(said, "No change that was tried would reserve less.")
		}
	}
	return said
}

// peak returns the first run with Moments, and the one with most bytes reserved.
func (p Page) peak() (r Run, m *Moment) {
	for _, r := range p.Runs {
		if len(r.Moments) > 0 {
			return r, &r.Moments[Fullest(r.Moments)]
		}
	}
	return r, nil
}

// littleGap is the share of the reserved bytes below which the live blocks explain more than the gap.
const littleGap = 0.1

// mostly says what most of the memory that a run reserves is for.
func (p Page) mostly(run string, s gap.Split) string {
	whole := s.Reserved - s.Live
	if all := largestCauses(s); len(all) > 0 && float64(whole) > littleGap*float64(s.Reserved) {
		c := all[0]
		return fmt.Sprintf("%s of the %s that %s reserves are not live, %s of them by %s (%s).",
			text.Bytes(whole), text.Bytes(s.Reserved), run, text.Bytes(s.Bytes[c]), c, c.Text())
	}
	said := fmt.Sprintf("%s of the %s that %s reserves are live", text.Bytes(s.Live), text.Bytes(s.Reserved), run)
	if g := tiles(p.Blocks); len(g) > 0 {
		said += fmt.Sprintf(", %s of them %s", text.Bytes(g[0].bytes), clipped(g[0].name))
	}
	return said + "."
}

// diverged names the runs that diverged.
func (p Page) diverged() []string {
	var runs []string
	for _, r := range p.Runs {
		if r.Diverged > 0 {
			runs = append(runs, fmt.Sprintf("%s diverged in epoch %d", r.Name, r.Diverged))
		}
	}
	if runs == nil {
		return nil
	}
	return []string{few(runs, "and") + ": the loss became NaN or infinite."}
}

// worth is the smallest difference, in percent, that matters. An interval with a larger margin may hide it.
const worth = 5

// ranking compares runs that took turns and whose differences from the first are known. It
// calls a run faster than another only if the interval excludes zero.
func (p Page) ranking(timed []int) string {
	best := timed[0]
	for _, i := range timed[1:] {
		if d := p.difference(i); d.Shorter() && (best == timed[0] || d.Percent < p.difference(best).Percent) {
			best = i
		}
	}
	equal, noisy := []string{p.Runs[best].Name}, false
	for _, i := range timed {
		if i != best && p.between(i, best).WithinNoise() && !p.difference(i).Longer() {
			equal = append(equal, p.Runs[i].Name)
			noisy = noisy || p.between(i, best).Margin() > worth
		}
	}
	unit, each := p.unit()
	took := fmt.Sprintf("%s %s %s", digits(stats.Median(p.Runs[best].times())), unit, each)
	d := p.difference(best)
	switch {
	case best != timed[0]:
		with := ""
		if len(equal) > 1 {
			with = "with " + equal[0] + ", "
		}
		return fmt.Sprintf("%s is the fastest: %s%s takes %s less time than with %s (95 %% interval %s).", few(equal, "or"), with, each, plainPercent(d.Percent), p.base(), interval(d))
	case noisy:
		return fmt.Sprintf("The %ss vary too much to tell %s apart.", p.turn(), few(equal, "and"))
	case len(equal) > 1:
		return fmt.Sprintf("%s take the same time within noise: %s.", few(equal, "and"), took)
	}
	return fmt.Sprintf("%s is the fastest: %s.", equal[0], took)
}

// few lists up to four names, and counts the others.
func few(names []string, word string) string {
	const most = 4
	if more := len(names) - most; more > 1 {
		names = append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return text.List(names, word)
}
