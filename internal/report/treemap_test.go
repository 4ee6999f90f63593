package report

import (
	"math"
	"testing"
)

// TestTreemap wants areas in proportion to bytes, inside the whole, and parts that are no slivers.
func TestTreemap(t *testing.T) {
	var blocks []TagBlocks
	sum := int64(0)
	for i := range int64(60) {
		blocks = append(blocks, TagBlocks{Tag: string(rune('A' + i)), Category: []string{"gradients", "", "parameters"}[i%3], AtPeak: 1000 / (i + 1)})
		sum += 1000 / (i + 1)
	}
	for _, all := range [][]TagBlocks{blocks, {{Tag: "alone", AtPeak: 7}}, {{Tag: "freed"}}} {
		groups := tiles(all)
		bytes := int64(0)
		for _, g := range groups {
			bytes += g.bytes
		}
		for i, r := range squarified(rect{0, 0, 800, 400}, groups) {
			want := 800 * 400 * float64(groups[i].bytes) / float64(bytes)
			if math.Abs(r.w*r.h-want) > 1 || r.x < -1e-6 || r.y < -1e-6 || r.x+r.w > 800.001 || r.y+r.h > 400.001 || max(r.w/r.h, r.h/r.w) > 8 {
				t.Errorf("%s: %+v, want an area of %g", groups[i].name, r, want)
			}
		}
	}
	groups := tiles(blocks)
	if len(groups) != 3 || groups[0].name != "gradients" || groups[0].bytes+groups[1].bytes+groups[2].bytes != sum {
		t.Errorf("categories %+v, want 3 of %d bytes", groups, sum)
	}
	if few := fewTiles(make([]tile, mostTiles+5)); len(few) != mostTiles+1 || few[mostTiles].name != "5 other tags" {
		t.Errorf("%d tiles, the last %q", len(few), few[len(few)-1].name)
	}
}
