package report

// write writes the page.
func (s *sheet) write(d *document) {
	d.putf(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%s">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<style>%s</style>
</head>
<body>
<main>
`, s.Policy, s.Title, s.Style)
	s.writeHeader(d)
	s.writeChanges(d)
	s.writeCards(d)
	s.writeCauses(d)
	s.writeBlocks(d)
	if s.Causes != nil {
		s.writeMaps(d)
	}
	s.writeFacts(d)
	s.writeTimes(d)
	s.writeAllocator(d)
	s.writeMemory(d)
	s.writeSteps(d)
	s.writeLosses(d)
	if s.Causes == nil {
		s.writeMaps(d)
	}
	d.putf("</main>\n<script>%s</script>\n</body>\n</html>\n", s.Script)
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

// chart writes a chart above its text.
func (d *document) chart(chart markup, text string) {
	d.putf("<figure>%s<figcaption>%s</figcaption></figure>\n", chart, text)
}

// grid writes charts below their titles, two in a row if there is room.
func (d *document) grid(figures []figure) {
	d.putf("<div class=\"grid\">\n")
	for _, f := range figures {
		d.putf("<figure><figcaption><b>%s</b> %s</figcaption>%s</figure>\n", f.Name, f.Text, f.Chart)
	}
	d.putf("</div>\n")
}

// startTable begins a table that scrolls if it is too wide. label describes it to screen readers.
func (d *document) startTable(class, label string, caption markup, heads ...column) {
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

// classed returns the attribute of a style class, or "".
func classed(class string) markup {
	if class == "" {
		return ""
	}
	return escaped(` class="%s"`, class)
}

// cells returns cells of a row.
func cells(all ...string) (row markup) {
	for _, text := range all {
		row += escaped("<td>%s</td>", text)
	}
	return row
}

// row writes a row of a table. key is the class of the colour before its name, or "".
func (d *document) row(key, name string, cells markup) {
	d.putf("<tr><th scope=\"row\">%s%s</th>%s</tr>\n", keyed(key), name, cells)
}

// keyed returns a mark in the colour of a style class, or "".
func keyed(class string) markup {
	if class == "" {
		return ""
	}
	return escaped(`<i class="key %s"></i>`, class)
}

// legend writes what colours stand for.
func (d *document) legend(all ...legend) {
	d.putf(`<ul class="legend">`)
	for _, l := range all {
		d.putf("<li>%s%s</li>", keyed(l.Class), l.Name)
	}
	d.putf("</ul>\n")
}

// heads returns the headings of columns without a class.
func heads(names ...string) (all []column) {
	for _, name := range names {
		all = append(all, column{Name: name})
	}
	return all
}
