package report

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"mlpool/internal/text"
)

// breaks marks where a command may be broken.
var breaks = strings.NewReplacer("=", "=<wbr>", "torch.cuda.", "torch.cuda.<wbr>", "(", "(<wbr>")

// changes writes what would help.
func (d *document) changes() {
	if d.Changes == nil {
		return
	}
	d.section("changes", "What would help", func() {
		d.startTable("", "Changes and what they save", "Most bytes reserved, in a replay of the trace with one change each",
			append(heads("Change", "from", "to", "saving"), column{"how", "phrase"})...)
		for _, c := range d.Changes {
			command := markup(breaks.Replace(string(escaped("%s", c.Command))))
			d.tagRow(c.Name, cells(text.Bytes(c.From), text.Bytes(c.To), c.saving())+escaped(`<td class="tag"><code>%s</code></td>`, command))
		}
		d.endTable("")
	})
}

// saving writes what a change saves.
func (c Change) saving() string {
	switch less := c.From - c.To; {
	case less > 0:
		return fmt.Sprintf("%s (%.0f %%)", text.Bytes(less), 100*float64(less)/float64(c.From))
	case less < 0:
		return "none: " + text.Bytes(-less) + " more"
	}
	return "none"
}

// cards writes the smallest memory that each allocator can finish with.
func (d *document) cards() {
	if d.Cards == nil {
		return
	}
	d.section("cards", "The smallest card", func() {
		top, least := int64(1), ""
		for _, c := range d.Cards {
			top = max(top, c.Bytes)
			if c.Live > 0 {
				least = fmt.Sprintf(". At most %s are live at once: no allocator needs less", text.Bytes(c.Live))
			}
		}
		d.startTable("", "Smallest memory by allocator", "The smallest memory of a device in which the trace finishes"+least+". An allocator that finds no memory releases what it keeps and tries again, so it may need less than it reserves without a limit. The CUDA context and other programs need memory as well.",
			heads("Allocator", "memory", "× live", "")...)
		for _, c := range d.Cards {
			over := ""
			if c.Live > 0 {
				over = fmt.Sprintf("%.2f", float64(c.Bytes)/float64(c.Live))
			}
			d.row("", c.Name, cells(text.Bytes(c.Bytes), over)+escaped(`<td><span class="bar"><i style="width:%s%%"></i></span></td>`, share(float64(c.Bytes), float64(top))))
		}
		d.endTable("")
	})
}

// mostTags is the largest number of tags that the page lists.
const mostTags = 30

// blocks writes the blocks of a trace by tag, and by size and age.
func (d *document) blocks() {
	if d.Blocks == nil && d.Sizes == nil {
		return
	}
	d.section("blocks", "Blocks", func() {
		if d.Blocks != nil {
			d.startTable("", "Blocks by tag", "Blocks by tag, with the bytes that are live when most is reserved. Ages are in requests, from Alloc to Free.",
				heads("Tag", "live then", "blocks", "largest", "median age", "not freed")...)
			shown := min(len(d.Blocks), mostTags)
			for _, t := range d.Blocks[:shown] {
				d.tagRow(t.Name(), t.cells())
			}
			foot := markup("")
			if others := d.Blocks[shown:]; len(others) > 0 {
				foot = escaped("<tfoot><tr><th scope=\"row\" class=\"tag\">%s</th>%s</tr></tfoot>\n", text.Count(len(others), "other tag"), sum(others).cells())
			}
			d.endTable(foot)
		}
		if d.Sizes != nil {
			d.heat(d.Sizes)
		}
	})
}

// sum returns the sum of tags, which has no median age.
func sum(all []TagBlocks) TagBlocks {
	whole := TagBlocks{MedianAge: -1}
	for _, t := range all {
		whole.Blocks += t.Blocks
		whole.AtPeak += t.AtPeak
		whole.Largest = max(whole.Largest, t.Largest)
		whole.Unfreed += t.Unfreed
	}
	return whole
}

// Name returns the tag and its category.
func (t TagBlocks) Name() string {
	name := cmp.Or(clipped(t.Tag), "untagged")
	if t.Category != "" {
		name += ", " + t.Category
	}
	return name
}

// cells writes the cells of a row.
func (t TagBlocks) cells() markup {
	age := "–"
	if t.MedianAge >= 0 {
		age = fmt.Sprint(t.MedianAge)
	}
	return cells(text.Bytes(t.AtPeak), t.Blocks, text.Bytes(t.Largest), age, t.Unfreed)
}

// mostHeat bounds the exponents of sizes and ages, which a table has room for.
const mostHeat = 62

// heat writes a table of blocks by size, the largest first, and age. The darker a cell, the more bytes its blocks have.
func (d *document) heat(all []SizeCell) {
	type place struct{ size, age int }
	found := map[place]SizeCell{}
	low, high, oldest, never := mostHeat, 0, -1, false
	most := int64(1)
	for _, c := range all {
		at := place{max(0, min(c.Size, mostHeat)), max(-1, min(c.Age, mostHeat))}
		sum := found[at]
		sum.Blocks, sum.Bytes = sum.Blocks+c.Blocks, sum.Bytes+c.Bytes
		found[at] = sum
		low, high, oldest = min(low, at.size), max(high, at.size), max(oldest, at.age)
		never = never || at.age < 0
		most = max(most, sum.Bytes)
	}
	var ages []string
	for age := range oldest + 1 {
		ages = append(ages, requests(age))
	}
	if never {
		ages = append(ages, "never freed")
	}
	d.startTable("heat", "Blocks by size and age", "Bytes of all blocks by size (down) and lifetime in requests (across). Each row and column starts at its number and ends at twice that. The stronger its colour, the more bytes a cell has.",
		heads(append([]string{""}, ages...)...)...)
	for size := high; size >= low; size-- {
		name := text.Bytes(1 << size)
		var row markup
		for age := range ages {
			class := ""
			if age > oldest {
				class, age = "never", -1
			}
			row += "<td" + classed(class)
			if c := found[place{size, age}]; c.Blocks > 0 {
				warmth := 12 + int(math.Round(88*math.Cbrt(float64(max(0, c.Bytes))/float64(most))))
				row += escaped(` style="--heat:%d" title="%s of %s or more, age %s: %s"`, warmth, text.Count(c.Blocks, "block"), name, ages[(age+len(ages))%len(ages)], text.Bytes(c.Bytes))
			}
			row += "></td>"
		}
		d.row("", name, row)
	}
	d.endTable("")
}

// requests writes 2^age in at most four characters.
func requests(age int) string {
	v, unit := float64(uint64(1)<<age), ""
	for _, u := range []string{"k", "M", "G", "T", "P", "E"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	return fmt.Sprintf("%.3g%s", v, unit)
}
