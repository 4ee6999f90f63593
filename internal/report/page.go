package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"mlpool/internal/text"
)

//go:embed page.css
var pageCSS string

//go:embed lanes.js
var lanesJS string

//go:embed moments.js
var momentsJS string

// A sheet is what the page shows: numbers as text, charts as drawn. A part that is empty is not shown.
type sheet struct {
	Title    string
	Replay   bool
	Several  bool
	Policy   string // Content-Security-Policy: only the page's own style and script
	Style    markup
	Script   markup
	Headline []string

	Columns []column // of the table below the headline
	Results []result

	Common []Fact   // facts that all runs share
	Heads  []string // of the table of the other facts
	Differ []factRow

	Spread, Differences, Allocator markup
	Caption                        string // of the results
	Medians                        bool   // a run was timed several times
	Timed                          string // what was timed
	Compared, Untold               string // how runs were compared, or why not
	Outliers                       string

	Memory []figure

	Causes     []causeTable
	CauseBars  markup
	CauseAreas []figure
	CauseKey   []legend

	Changes   []changeRow
	Cards     []cardRow
	CardsLive string
	Tags      []TagBlocks
	Rest      *TagBlocks // the sum of the tags that are not shown
	Heat      *heat

	Timelines []figure
	Totals    []stepRow
	Steps     []legend
	StepNotes []string
	Typical   string // how the step was chosen

	Losses      markup
	ValLoss     markup // by epoch
	ValAcc      markup
	LossText    string
	LossLegend  []legend
	Maps        []figure
	Sliders     int      // maps with other moments
	WithoutMap  []string // runs
	NoTimelines []string // runs
}

// A figure shows one run.
type figure struct {
	Name, Text string
	Chart      markup
	Panel      panel
	Legend     []mapShare
	Same       string // a run with the same live blocks, which lists them
	When       string // the moment of the map, if there are others
	Number     int    // among the figures with a slider
	slider
}

type legend struct{ Class, Name string }

// order sorts classes, with other last.
func order(a, b string) int {
	if (a == "other") != (b == "other") {
		return cmp.Compare(b, a) // o is before t
	}
	return cmp.Compare(a, b)
}

// named returns the legend of an operation.
func named(c colours, name string) legend {
	if class := c.of(name); class != "other" {
		return legend{class, unnumbered(name)}
	}
	return legend{"other", "other"}
}

// Write writes p as one HTML file that loads nothing else. It returns an error if p has no
// run.
func Write(w io.Writer, p Page) error {
	if len(p.Runs) == 0 {
		return errors.New("report: no run to show")
	}
	script := lanesJS + momentsJS
	sum := sha256.Sum256([]byte(script))
	s := sheet{
		Title: p.Title, Replay: p.Replay, Several: len(p.Runs) > 1,
		Policy: "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'",
		Style:  markup(palettes() + pageCSS), Script: markup(script),
		Headline: p.headline(),
	}
	s.Headline[0] = strings.ReplaceAll(s.Headline[0], " %", "\u00a0%") // a line of the heading must not begin with %
	s.Columns, s.Results = p.results()
	var differ []factRow
	s.Common, differ = p.facts()
	s.Heads, s.Differ = p.factTable(differ)
	s.addTimes(p)
	s.addMemory(p)
	s.addTimelines(p)
	s.addLosses(p)
	s.addCauses(p)
	s.addTrace(p)
	if err := s.addMaps(p); err != nil {
		return fmt.Errorf("report: cannot encode the maps: %w", err)
	}
	var d document
	s.write(&d)
	_, err := d.WriteTo(w)
	return err
}

func (s *sheet) addTimes(p Page) {
	if len(p.timed()) == 0 {
		return
	}
	var most int
	most, s.Caption, s.Timed = p.counted()
	s.Medians = most >= leastMedian
	s.Spread, s.Outliers, s.Untold = p.spreads(), p.outliers(), p.untold()
	if s.Untold == "" && len(p.timed()) > 1 {
		s.Differences = p.intervals()
		s.Compared = fmt.Sprintf("Differences compare %ss that ran in turns: the Hodges–Lehmann estimate with its 95 %% interval. If the interval contains zero, the difference is noise. Longer means slower than %s.", p.turn(), p.base())
	}
	if slices.ContainsFunc(p.Runs, func(r Run) bool { return !(r.median(Epoch.allocatorTime) == 0) && len(r.Epochs) > 0 }) {
		s.Allocator = p.bars()
	}
}

func (s *sheet) addMemory(p Page) {
	for i, r := range p.Runs {
		if len(r.Memory) == 0 {
			continue
		}
		text := peaksText(r.Memory)
		if r.Over != "" {
			text += ", over " + r.Over
		}
		s.Memory = append(s.Memory, figure{Name: r.Name, Chart: p.memory(i), Text: text})
	}
}

func (s *sheet) addTimelines(p Page) {
	classes := p.colours()
	length := 0.
	for _, r := range p.Runs {
		if r.Step != nil {
			length = max(length, r.Step.Length)
		}
	}
	var operations []legend
	for i, r := range p.Runs {
		if r.Step == nil || length == 0 {
			s.NoTimelines = append(s.NoTimelines, r.Name)
			continue
		}
		s.Timelines = append(s.Timelines, figure{Name: r.Name, Panel: timeline(r, length, classes), Text: p.class(i)})
		s.Totals = append(s.Totals, stepTotals(r))
		if n := r.Step.Steps; n > 1 {
			s.Typical = fmt.Sprintf("the one of median length out of %d recorded", n)
		}
		if note := r.Step.Note; note != "" && !slices.Contains(s.StepNotes, note) {
			s.StepNotes = append(s.StepNotes, note)
		}
		for _, span := range slices.Concat(r.Step.Kernels, r.Step.Blocks) {
			if l := (named(classes, span.Name)); !slices.Contains(operations, l) {
				operations = append(operations, l)
			}
		}
	}
	slices.SortFunc(operations, func(a, b legend) int { return order(a.Class, b.Class) })
	s.Steps = operations
}

func (s *sheet) addLosses(p Page) {
	var with []int
	for i, r := range p.Runs {
		if len(r.Losses) > 0 {
			with = append(with, i)
		}
	}
	if len(with) == 0 {
		return
	}
	shown := with[:1]
	first := p.Runs[with[0]]
	var differ, names []string
	for _, i := range with {
		names = append(names, p.Runs[i].Name)
		if at := disagreement(first.Losses, p.Runs[i].Losses); at >= 0 {
			shown = append(shown, i)
			differ = append(differ, fmt.Sprintf("%s from step %d on", p.Runs[i].Name, at+1))
		}
	}
	switch {
	case len(with) == 1:
		s.LossText = fmt.Sprintf("%s, %d steps.", names[0], len(first.Losses))
	case len(differ) == 0:
		s.LossText = fmt.Sprintf("The losses of %s are identical, bit for bit, in all common steps. One curve shows them all.", text.List(names, "and"))
	default:
		s.LossText = fmt.Sprintf("Losses differ from those of %s: %s. The losses of all other runs are identical, bit for bit.", first.Name, text.List(differ, "and"))
	}
	s.Losses = p.lossCurves(shown)
	if s.Losses == "" {
		s.LossText += " None of them is finite, so there is no curve."
	}
	s.ValLoss = p.perEpoch(shown, "Validation loss", func(e Epoch) float64 { return e.ValLoss })
	s.ValAcc = p.perEpoch(shown, "Validation accuracy in %", func(e Epoch) float64 { return 100 * e.ValAcc })
	for _, i := range shown {
		if len(shown) > 1 {
			s.LossLegend = append(s.LossLegend, legend{p.class(i), p.Runs[i].Name})
		}
	}
}

// disagreement returns the first common step at which the losses differ in any bit, or -1.
func disagreement(a, b []float32) int {
	for i := range min(len(a), len(b)) {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// addMaps draws the map of each run at its peak, and encodes those of its other moments.
func (s *sheet) addMaps(p Page) error {
	classes, bytes := p.colours(), p.laneBytes()
	sliders, err := p.sliders(classes, bytes, mostMapBytes)
	if err != nil {
		return err
	}
	for i, r := range p.Runs {
		all := r.mapped()
		if len(all) == 0 || bytes == 0 {
			s.WithoutMap = append(s.WithoutMap, r.Name)
			continue
		}
		m := all[fullest(all)]
		f := figure{Name: r.Name, Panel: newMapPainter(classes, bytes).draw(r.Name, m.Map), Legend: shares(m.Map, classes), slider: sliders[i]}
		f.Text = f.Panel.Label
		if f.Shown > 0 {
			f.When, f.Text = p.when(m)+": "+gapText(m.Gap), segmentsText(m.Map)
			f.Number = s.Sliders
			s.Sliders++
		}
		if i := slices.IndexFunc(s.Maps, func(m figure) bool { return sameLive(m.Legend, f.Legend) }); i >= 0 {
			f.Same = s.Maps[i].Name
			f.Legend = slices.DeleteFunc(f.Legend, func(m mapShare) bool { return isState(m.Class) == 0 })
		}
		s.Maps = append(s.Maps, f)
	}
	return nil
}
