package report

import "fmt"

func (s *sheet) writeMemory(d *document) {
	d.section("memory", "Live against reserved", func() {
		if s.Memory == nil {
			d.putf("<p class=\"missing\">Memory over time was not recorded: a training with <code>-report</code> records it.</p>\n")
			return
		}
		scale := ""
		if s.Several {
			scale = " All runs have the same scale."
		}
		d.putf("<p>The area is live memory, as requested; the line is memory reserved from the driver.%s</p>\n", scale)
		d.grid(s.Memory)
	})
}

func (s *sheet) writeCauses(d *document) {
	if s.Causes == nil {
		return
	}
	d.section("causes", "Where the memory goes", func() {
		d.putf("<p>What is reserved and not live, by cause, when each run reserves most.</p>\n")
		if s.CauseBars != "" {
			d.putf("<figure>%s</figure>\n", s.CauseBars)
		}
		d.legend(s.CauseKey...)
		if s.CauseAreas != nil {
			d.grid(s.CauseAreas)
		}
		for _, t := range s.Causes {
			d.putf("<h3>%s</h3>\n<p>%s</p>\n", t.Name, t.Text)
			if t.Rows != nil {
				t.write(d)
			}
		}
	})
}

// write writes the causes, and below them the blocks that hold the memory of each.
func (t causeTable) write(d *document) {
	d.startTable("", "Memory of "+t.Name+" that is reserved and not live", "Reserved and not live",
		append(heads("Cause", "bytes", "share"), column{"which is", "phrase"})...)
	for _, r := range t.Rows {
		d.row(r.Class, r.Name, cells(r.Bytes, r.Share)+escaped(`<td class="phrase">%s</td>`, r.Text))
	}
	d.endTable(escaped("<tfoot><tr><th scope=\"row\">reserved − live</th><td>%s</td><td></td><td></td></tr></tfoot>\n", t.Sum))
	for i, r := range t.Rows {
		if r.Holders == nil {
			continue
		}
		open := markup("")
		if i == 0 {
			open = " open"
		}
		d.putf("<details%s>\n<summary>%s%s: blocks next to it</summary>\n", open, keyed(r.Class), r.Name)
		d.startTable("", "Blocks that hold memory: "+r.Name, "A free range between two blocks counts for both. The age is that of the oldest block, in requests.",
			heads("Tag", "holds", "blocks", "size of each", "stream", "age")...)
		for _, h := range r.Holders {
			d.tagRow(h.Tag, cells(h.Bytes, h.Blocks, h.Size, h.Stream, h.Age))
		}
		d.endTable("")
		d.putf("</details>\n")
	}
}

// tagRow writes a row whose name may be long.
func (d *document) tagRow(name string, cells markup) {
	d.putf("<tr><th scope=\"row\" class=\"tag\">%s</th>%s</tr>\n", name, cells)
}

func (s *sheet) writeChanges(d *document) {
	if s.Changes == nil {
		return
	}
	d.section("changes", "What would help", func() {
		d.startTable("", "Changes and what they save", "Bytes reserved at the peak, in a replay of the trace with one change each",
			append(heads("Change", "from", "to", "saving"), column{"how", "phrase"})...)
		for _, c := range s.Changes {
			var command markup // may be broken after each part
			for _, part := range c.Command {
				command += escaped("%s<wbr>", part)
			}
			d.tagRow(c.Name, cells(c.From, c.To, c.Saving)+escaped(`<td class="tag"><code>%s</code></td>`, command))
		}
		d.endTable("")
	})
}

func (s *sheet) writeCards(d *document) {
	if s.Cards == nil {
		return
	}
	least := ""
	if s.CardsLive != "" {
		least = fmt.Sprintf(". At most %s are live: no allocator needs less", s.CardsLive)
	}
	d.section("cards", "The smallest card", func() {
		d.startTable("", "Smallest memory by allocator", escaped("The smallest memory of a device in which the trace finishes%s. An allocator that finds no memory releases what it keeps and tries again, so it may need less than it reserves without a limit. The CUDA context and other programs need memory as well.", least),
			heads("Allocator", "memory", "× live", "")...)
		for _, c := range s.Cards {
			d.row("", c.Name, cells(c.Bytes, c.Over)+escaped(`<td><span class="bar"><i style="width:%s%%"></i></span></td>`, c.Width))
		}
		d.endTable("")
	})
}

func (s *sheet) writeBlocks(d *document) {
	if s.Tags == nil && s.Heat == nil {
		return
	}
	d.section("blocks", "Blocks", func() {
		if s.Tags != nil {
			d.startTable("", "Blocks by tag", "Blocks by tag. Ages are in requests, from Alloc to Free.",
				heads("Tag", "at the peak", "blocks", "largest", "median age", "not freed")...)
			for _, t := range s.Tags {
				d.tagRow(t.name(), t.cells())
			}
			foot := markup("")
			if s.Rest != nil {
				foot = escaped("<tfoot><tr><th scope=\"row\" class=\"tag\">%s</th>%s</tr></tfoot>\n", s.Rest.name(), s.Rest.cells())
			}
			d.endTable(foot)
		}
		if s.Heat != nil {
			s.Heat.write(d)
		}
	})
}

func (h *heat) write(d *document) {
	d.startTable("heat", "Blocks by size and age", "Bytes of all blocks by size (down) and lifetime in requests (across). Each row and column starts at its number and ends at twice that. The stronger its colour, the more bytes a cell has.",
		heads(append([]string{""}, h.Ages...)...)...)
	for _, r := range h.Rows {
		var row markup
		for _, c := range r.Cells {
			row += "<td"
			if c.Never {
				row += ` class="never"`
			}
			if c.Text != "" {
				row += escaped(` style="--heat:%d" title="%s"`, c.Warmth, c.Text)
			}
			row += "></td>"
		}
		d.row("", r.Size, row)
	}
	d.endTable("")
}
