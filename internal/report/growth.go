package report

import "mlpool/internal/text"

// A Growth compares what is live in the trace of a page with another trace, each when most is live.
type Growth struct {
	Since    string // the name of the other trace
	From, To int64  // bytes live
	Tags     []Grown
}

// A Grown is a tag whose bytes changed.
type Grown struct {
	Tag, Category string
	From, To      int64
}

// Name returns the tag and its category.
func (g Grown) Name() string { return TagBlocks{Tag: g.Tag, Category: g.Category}.Name() }

// Signed writes a change of bytes with its sign.
func Signed(bytes int64) string {
	if bytes < 0 {
		return "−" + text.Bytes(-bytes)
	}
	return "+" + text.Bytes(bytes)
}

// growth writes what grew.
func (d *document) growth() {
	g := d.Growth
	if g == nil {
		return
	}
	d.section("growth", "What grew", func() {
		d.startTable("", "Changes of live bytes by tag", "Bytes live, each when most is: "+text.Bytes(g.From)+" in "+g.Since+", "+text.Bytes(g.To)+" now",
			heads("Tag", "change", "from", "to")...)
		shown := min(len(g.Tags), mostTags)
		for _, t := range g.Tags[:shown] {
			d.tagRow(t.Name(), cells(Signed(t.To-t.From), text.Bytes(t.From), text.Bytes(t.To)))
		}
		rest := Grown{Tag: text.Count(len(g.Tags)-shown, "other tag")}
		for _, t := range g.Tags[shown:] {
			rest.From, rest.To = rest.From+t.From, rest.To+t.To
		}
		foot := markup("")
		if len(g.Tags) > shown {
			foot = escaped("<tfoot><tr><th scope=\"row\" class=\"tag\">%s</th>%s</tr></tfoot>\n", rest.Tag, cells(Signed(rest.To-rest.From), text.Bytes(rest.From), text.Bytes(rest.To)))
		}
		d.endTable(foot)
	})
}
