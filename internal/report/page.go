package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

//go:embed page.css
var pageCSS string

//go:embed lanes.js
var lanesJS string

//go:embed moments.js
var momentsJS string

// Write writes p as one HTML file that loads nothing else. It returns an error if p has no
// run.
func Write(w io.Writer, p Page) error {
	if len(p.Runs) == 0 {
		return errors.New("report: no run to show")
	}
	d := &document{Page: p, colours: p.colours(), laneBytes: p.laneBytes()}
	sliders, err := p.sliders(d.colours, d.laneBytes, mostMapBytes)
	if err != nil {
		return fmt.Errorf("report: cannot encode the maps: %w", err)
	}
	script := lanesJS + momentsJS
	sum := sha256.Sum256([]byte(script))
	d.putf(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<style>%s</style>
</head>
<body>
<main>
`, base64.StdEncoding.EncodeToString(sum[:]), p.Title, markup(palettes()+pageCSS))
	d.header()
	d.growth()
	d.changes()
	d.cards()
	d.treemap()
	d.causes()
	d.blocks()
	if p.explained() {
		d.maps(sliders)
	}
	d.facts()
	d.times()
	d.allocator()
	d.memory()
	d.steps()
	d.losses()
	if !p.explained() {
		d.maps(sliders)
	}
	d.putf("</main>\n<script>%s</script>\n</body>\n</html>\n", markup(script))
	_, err = d.WriteTo(w)
	return err
}

// explained reports whether it is known why memory is reserved and not live.
func (p Page) explained() bool {
	return slices.ContainsFunc(p.Runs, func(r Run) bool { return len(r.Moments) > 0 })
}

// header writes what is said first, and the table of results.
func (d *document) header() {
	said := d.headline()
	first := strings.ReplaceAll(said[0], " %", "\u00a0%") // a line of the heading must not begin with %
	d.putf("<header>\n<p class=\"title\">%s</p>\n<h1>%s</h1>\n<p class=\"said\">%s</p>\n", d.Title, first, strings.TrimSpace(strings.Join(append(said[1:], d.Note), " ")))
	d.results()
	d.putf("</header>\n")
}

// section writes a section with a heading.
func (d *document) section(id, heading string, content func()) {
	d.putf("\n<section id=\"%s\">\n<h2>%s</h2>\n", id, heading)
	content()
	d.putf("</section>\n")
}

// missing says why something is not shown, or nothing.
func (d *document) missing(why string) {
	if why != "" {
		d.putf("<p class=\"missing\">%s</p>\n", why)
	}
}

// without names the runs of which something is not shown, if any.
func (d *document) without(what string, runs []string) {
	if runs != nil {
		d.missing("Without " + what + ": " + strings.Join(runs, ", ") + ".")
	}
}

// half writes a chart below its title in a grid, in which two are in a row if there is room.
func (d *document) half(name, text string, chart markup) {
	d.putf("<figure><figcaption><b>%s</b> %s</figcaption>%s</figure>\n", name, text, chart)
}

// A column or a cell of a class: roomy is hidden on a phone, phrase and tag may have several lines.
type column struct{ Name, Class string }

// heads returns the headings of columns without a class.
func heads(names ...string) (all []column) {
	for _, name := range names {
		all = append(all, column{Name: name})
	}
	return all
}

// startTable begins a table that scrolls if it is too wide. label describes it to screen readers.
func (d *document) startTable(class, label, caption string, heads ...column) {
	d.putf("<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"%s\">\n<table%s>\n<caption><span>%s</span></caption>\n<thead><tr>", label, classed(class), caption)
	for _, h := range heads {
		if h.Name == "" {
			d.putf("<td></td>")
			continue
		}
		d.putf(`<th scope="col"%s>%s</th>`, classed(h.Class), h.Name)
	}
	d.putf("</tr></thead>\n<tbody>\n")
}

// endTable ends the table, with a foot or "".
func (d *document) endTable(foot markup) {
	d.putf("</tbody>\n%s</table>\n</div>\n", foot)
}

// row writes a row of a table. key is the class of the colour before its name, or "".
func (d *document) row(key, name string, cells markup) {
	d.putf("<tr><th scope=\"row\">%s%s</th>%s</tr>\n", keyed(key), name, cells)
}

// tagRow writes a row whose name may be long.
func (d *document) tagRow(name string, cells markup) {
	d.putf("<tr><th scope=\"row\" class=\"tag\">%s</th>%s</tr>\n", name, cells)
}

type legend struct{ Class, Name string }

// legend writes what colours stand for.
func (d *document) legend(all ...legend) {
	d.putf(`<ul class="legend">`)
	for _, l := range all {
		d.putf("<li>%s%s</li>", keyed(l.Class), l.Name)
	}
	d.putf("</ul>\n")
}
