package report

import "strings"

func (s *sheet) writeMaps(d *document) {
	heading, missing := "Memory at the peak of a step", "a training with a log_dir records one when it ends normally"
	if s.Replay {
		heading, missing = "Memory at its peak", "a replay records one when it ends normally"
	}
	if s.Sliders > 0 {
		heading = "Memory at any moment"
	}
	d.section("map", heading, func() {
		if s.Maps == nil {
			d.missing("No map was recorded: " + missing + ".")
			return
		}
		scale := "from left to right"
		if s.Several {
			scale = "at one scale for all runs"
		}
		d.putf("<p>Segments by address, %s. Reserved but free memory is hatched; marks below a lane are pages.</p>\n", scale)
		class := markup("")
		if s.Sliders > 0 {
			s.writeSliders(d)
			class = ` class="lanes"`
		}
		d.putf("<div%s>\n", class)
		if s.Sliders > 0 {
			d.tools("the maps")
		}
		for _, m := range s.Maps {
			m.writeMap(d, s.Sliders > 0)
		}
		d.putf("</div>\n")
		if s.WithoutMap != nil {
			d.missing("Without a map: " + strings.Join(s.WithoutMap, ", ") + ".")
		}
	})
}

// writeSliders writes what chooses the moment and the runs that moments.js shows.
func (s *sheet) writeSliders(d *document) {
	var runs, alone markup
	for _, m := range s.Maps {
		if m.Shown > 0 {
			runs += escaped(`<option value="%d">%s</option>`, m.Number, m.Name)
		}
	}
	if s.Sliders < 2 {
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
`, runs, alone, runs)
	for _, m := range s.Maps {
		if m.Shown < m.Most {
			d.putf("<p class=\"missing\">%s: %d of %d recorded moments are shown, evenly spread.</p>\n", m.Name, m.Shown, m.Most)
		}
	}
}

// writeMap writes the map of a run. Without sliders on the page it has buttons of its own.
func (f figure) writeMap(d *document, sliders bool) {
	class, moments := "lanes map", markup("")
	if sliders {
		class = "map"
	}
	if f.Shown > 0 {
		moments = escaped(` data-moments="%d" data-peak="%d"`, f.Shown, f.Peak)
	}
	d.putf("<figure class=\"%s\"%s>\n<h3>%s</h3>\n", class, moments, f.Name)
	if f.Shown > 0 {
		d.putf("<p class=\"when\">%s</p>\n", f.When)
	}
	d.putf("<p class=\"whole\">%s</p>\n", f.Text)
	if !sliders {
		d.tools(f.Name)
	}
	d.panel(f.Panel)
	if f.Shown > 0 {
		d.putf("<template>%s</template>\n", f.Data)
	}
	same := ""
	if f.Same != "" {
		same = "The live blocks are those of " + f.Same + "."
	}
	d.putf("<figcaption>\n<span class=\"same\">%s</span>\n<ul class=\"shares\">\n", same)
	for _, m := range f.Legend {
		d.putf("<li><span>%s%s</span> <span>%s, %s</span></li>\n", keyed(m.Class), m.Name, m.count(), m.size())
	}
	d.putf("</ul>\n</figcaption>\n</figure>\n")
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
