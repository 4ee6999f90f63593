package report

import "slices"

// maps writes the map of each run at its fullest moment, with those of its other moments.
func (d *document) maps(sliders []slider) {
	heading, missing := "Memory at the peak of a step", "a training with a log_dir records one when it ends normally"
	if d.Replay {
		heading, missing = "Memory at one moment", "a replay records one when it ends normally"
	}
	moving := slices.ContainsFunc(sliders, func(s slider) bool { return s.Shown > 0 })
	if moving {
		heading = "Memory at any moment"
	}
	d.section("map", heading, func() {
		if d.laneBytes == 0 {
			d.missing("No map was recorded: " + missing + ".")
			return
		}
		scale := "from left to right"
		if len(d.Runs) > 1 {
			scale = "at one scale for all runs"
		}
		d.putf("<p>Segments by address, %s. Reserved but free memory is hatched; marks below a lane are pages.</p>\n", scale)
		if moving {
			d.sliderForm(sliders)
			d.putf("<div class=\"lanes\">\n")
			d.tools("the maps")
		} else {
			d.putf("<div>\n")
		}
		var without, names []string
		var drawn [][]mapShare
		for i, r := range d.Runs {
			all := r.mapped()
			if len(all) == 0 {
				without = append(without, r.Name)
				continue
			}
			m := all[Fullest(all)]
			legend := shares(m.Map, d.colours)
			same := slices.IndexFunc(drawn, func(other []mapShare) bool { return slices.Equal(live(other), live(legend)) })
			names, drawn = append(names, r.Name), append(drawn, legend)
			said := ""
			if same >= 0 {
				said = "The live blocks are those of " + names[same] + "."
				legend = slices.DeleteFunc(slices.Clone(legend), mapShare.live)
			}
			d.figureOfMap(r.Name, m, sliders[i], moving)
			d.putf("<figcaption>\n<span class=\"same\">%s</span>\n<ul class=\"shares\">\n", said)
			for _, s := range legend {
				d.putf("<li><span>%s%s</span> <span>%s</span></li>\n", keyed(s.Class), s.Name, s.amount())
			}
			d.putf("</ul>\n</figcaption>\n</figure>\n")
		}
		d.putf("</div>\n")
		d.without("a map", without)
	})
}

// live returns the shares of live blocks.
func live(all []mapShare) []mapShare {
	return slices.DeleteFunc(slices.Clone(all), func(m mapShare) bool { return !m.live() })
}

// sliderForm writes what chooses the moment and the runs that moments.js shows.
func (d *document) sliderForm(sliders []slider) {
	var runs, alone, thinned markup
	n := 0
	for i, s := range sliders {
		if s.Shown > 0 {
			runs += escaped(`<option value="%d">%s</option>`, n, d.Runs[i].Name)
			n++
		}
		if s.Shown < s.Most {
			thinned += escaped("<p class=\"missing\">%s: %d of %d recorded moments are shown, evenly spread.</p>\n", d.Runs[i].Name, s.Shown, s.Most)
		}
	}
	if n < 2 {
		alone = " hidden"
	}
	d.putf(`<div class="moments" hidden>
<label class="at">Moment <input type="range" name="at" min="0" value="0" autocomplete="off"><output></output></label>
<button type="button">Peak</button>
<label>Run <select name="first" autocomplete="off">%s</select></label>
<label%s>next to <select name="second" autocomplete="off"><option value="">none</option>%s</select></label>
<label>Stream <select name="stream" autocomplete="off"></select></label>
<label>Pool <select name="pool" autocomplete="off"></select></label>
</div>
%s`, runs, alone, runs, thinned)
}

// figureOfMap begins the figure of a run's map. Unless the page has sliders, it has buttons of its own.
func (d *document) figureOfMap(run string, m Moment, s slider, moving bool) {
	p := newMapPainter(d.colours, d.laneBytes).draw(run, m.Map)
	class, moments, said := "lanes map", markup(""), p.Label
	if moving {
		class = "map"
	}
	if s.Shown > 0 {
		moments = escaped(` data-moments="%d" data-peak="%d"`, s.Shown, s.Peak)
		said = segmentsText(m.Map)
	}
	d.putf("<figure class=\"%s\"%s>\n<h3>%s</h3>\n", class, moments, run)
	if s.Shown > 0 {
		d.putf("<p class=\"when\">%s: %s</p>\n", d.when(m), gapText(m.Gap))
	}
	d.putf("<p class=\"whole\">%s</p>\n", said)
	if !moving {
		d.tools(run)
	}
	d.panel(p)
	if s.Shown > 0 {
		d.putf("<template>%s</template>\n", s.Data)
	}
}

// tools writes the buttons that zoom and pan, which lanes.js answers.
func (d *document) tools(view string) {
	d.putf(`<div class="tools" role="group" aria-label="View of %s"><button type="button" data-zoom="2" aria-label="Zoom in">+</button><button type="button" data-zoom="0.5" aria-label="Zoom out">−</button><button type="button" data-pan="-1" aria-label="Pan left">←</button><button type="button" data-pan="1" aria-label="Pan right">→</button><button type="button" data-zoom="0">Whole</button><span class="hint">Point at a box or tap it for details. Zoom: pinch, click and turn the wheel, or press + and −. Pan: drag, or press ← and →.</span></div>
`, view)
}

// panel writes the lanes of a panel over their axis.
func (d *document) panel(p panel) {
	d.putf(`<div class="pan" tabindex="0" role="group" aria-label="%s"><div class="track" data-length="%v" data-unit="%s">`+"\n"+`<div class="axis">`, p.Label, p.Length, p.Unit)
	for _, t := range p.axis() {
		d.putf(`<span style="left:%s%%">%s</span>`, share(t.Value, p.Length), t.Label)
	}
	d.putf("</div>\n")
	for _, l := range p.Lanes {
		if l.Name != "" {
			d.putf("<div class=\"name\"><span>%s</span></div>\n", l.Name)
		}
		class := "lane"
		if l.Thin {
			class = "lane thin"
		}
		end := share(l.Used, p.Length) // of the axis, in percent
		d.putf(`<div class="%s"><s style="width:%s%%"></s>`, class, end)
		if l.Ticks > 0 {
			d.putf(`<u style="width:%s%%;background-size:%s%% 100%%"></u>`, end, share(l.Ticks, l.Used))
		}
		for _, b := range l.Boxes {
			d.putf(`<b class="%s" style="left:%s%%;width:%s%%" data-t="%s">%s</b>`, b.Class, share(b.Start, p.Length), share(b.Length, p.Length), b.tip(), b.Label)
		}
		d.putf("</div>\n")
	}
	d.putf("</div></div>\n<p class=\"missing note\">%s</p>\n", p.Note)
}
