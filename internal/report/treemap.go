package report

import (
	"cmp"
	"fmt"
	"slices"

	"mlpool/internal/text"
)

// A tile is a part of a treemap: a category of blocks, or the blocks of a tag.
type tile struct {
	name  string
	bytes int64
	tags  []tile // of a category, the largest first
}

// mostTiles is the largest number of tags of a category that the treemap shows.
const mostTiles = 40

// tiles returns the blocks that are live at the peak by category, the largest first. If no category is known, it
// returns them by tag.
func tiles(all []TagBlocks) (groups []tile) {
	known := slices.ContainsFunc(all, func(b TagBlocks) bool { return b.Category != "" })
	for _, b := range all {
		if b.AtPeak <= 0 {
			continue
		}
		t := tile{name: cmp.Or(clipped(b.Tag), "untagged"), bytes: b.AtPeak}
		if !known {
			groups = append(groups, t)
			continue
		}
		name := cmp.Or(b.Category, "other")
		at := slices.IndexFunc(groups, func(g tile) bool { return g.name == name })
		if at < 0 {
			at = len(groups)
			groups = append(groups, tile{name: name})
		}
		groups[at].bytes += t.bytes
		groups[at].tags = append(groups[at].tags, t)
	}
	for i := range groups {
		groups[i].tags = fewTiles(groups[i].tags)
	}
	return fewTiles(groups)
}

// fewTiles sorts tiles, the largest first, and makes one of those after mostTiles.
func fewTiles(all []tile) []tile {
	slices.SortStableFunc(all, func(a, b tile) int { return cmp.Compare(b.bytes, a.bytes) })
	if len(all) <= mostTiles {
		return all
	}
	rest := tile{name: text.Count(len(all)-mostTiles, "other tag")}
	for _, t := range all[mostTiles:] {
		rest.bytes += t.bytes
	}
	return append(all[:mostTiles:mostTiles], rest)
}

// A rect is a part of the treemap, in pixels of a page of the full width.
type rect struct{ x, y, w, h float64 }

// squarified divides r among tiles, the largest first, in parts that are as close to squares as rows allow: it adds
// tiles to a row along the shorter side as long as that makes the row's worst part no longer.
func squarified(r rect, all []tile) (parts []rect) {
	var left float64
	for _, t := range all {
		left += float64(t.bytes)
	}
	for len(all) > 0 {
		short, area := min(r.w, r.h), r.w*r.h/left
		n, sum, worst := 0, 0., 0.
		for i, t := range all {
			next := (sum + float64(t.bytes)) * area
			ratio := max(short*short*float64(all[0].bytes)*area/next/next, next*next/(short*short*float64(t.bytes)*area))
			if i > 0 && ratio > worst {
				break
			}
			n, sum, worst = i+1, sum+float64(t.bytes), ratio
		}
		deep, at := sum*area/short, 0.
		for _, t := range all[:n] {
			long := float64(t.bytes) / sum * short
			if r.w >= r.h {
				parts = append(parts, rect{r.x, r.y + at, deep, long})
			} else {
				parts = append(parts, rect{r.x + at, r.y, long, deep})
			}
			at += long
		}
		if r.w >= r.h {
			r.x, r.w = r.x+deep, r.w-deep
		} else {
			r.y, r.h = r.y+deep, r.h-deep
		}
		all, left = all[n:], left-sum
	}
	return parts
}

// The size of the treemap, and the height of a category's name, in pixels.
const treeHeight, tileName = 440, 20

// treemap writes what is live at the peak as nested boxes whose areas are bytes.
func (d *document) treemap() {
	groups := tiles(d.Blocks)
	r, m := d.peak()
	if m == nil || groups == nil {
		return
	}
	d.section("live", "What is live", func() {
		d.putf("<p>%s are live %s, at %s. Each area is proportional to its bytes.</p>\n<div class=\"treemap\">\n", text.Bytes(m.Gap.Live), r.When(), d.when(*m))
		for i, r := range squarified(rect{0, 0, wide, treeHeight}, groups) {
			g := groups[i]
			class := "other"
			if i < mostColours {
				class = fmt.Sprintf("t%d", i)
			}
			d.tile(class, r, g)
			if len(g.tags) > 0 && r.h > 2*tileName {
				for j, part := range squarified(rect{r.x, r.y + tileName, r.w, r.h - tileName}, g.tags) {
					d.tile(class+" inner", part, g.tags[j])
				}
			}
		}
		d.putf("</div>\n")
	})
}

// tile writes a box. One that is too small has no label, but shows it when pointed at.
func (d *document) tile(class string, r rect, t tile) {
	said, label := t.name+", "+text.Bytes(t.bytes), markup("")
	if r.w > 60 && r.h > 18 {
		label = escaped("%s", said)
	}
	d.putf("<b class=\"%s\" style=\"left:%s%%;top:%s%%;width:%s%%;height:%s%%\" title=\"%s\">%s</b>\n", class,
		share(r.x, wide), share(r.y, treeHeight), share(r.w, wide), share(r.h, treeHeight), said, label)
}
