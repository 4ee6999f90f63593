package explain

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"mlpool/allocator/observe"
	"mlpool/internal/report"
	"mlpool/internal/stats"
)

// A lifetime is one block of a trace. Ages are in events.
type lifetime struct {
	name      string
	category  observe.Category
	bytes     int64
	born, age int // age is −1 if the block is never freed
}

// lifetimes returns the blocks of a trace in the order of their Allocs, and the event at which most bytes are live.
func lifetimes(t *observe.Requests) (all []lifetime, peak int) {
	index := make([]int, t.Slots)
	var live, most int64
	for i := range t.Events {
		e := &t.Events[i]
		if e.Free {
			live -= e.Bytes
			all[index[e.Slot]].age = i - all[index[e.Slot]].born
			continue
		}
		index[e.Slot] = len(all)
		all = append(all, lifetime{blockName(t, e), t.Categories[e.Tag], e.Bytes, i, -1})
		if live += e.Bytes; live > most {
			most, peak = live, i
		}
	}
	return all, peak
}

// blocksByTag returns the blocks by tag, those with most bytes at the peak first.
func blocksByTag(all []lifetime, peak int) []report.TagBlocks {
	type key struct {
		name string
		observe.Category
	}
	byName := map[key]*report.TagBlocks{}
	ages := map[key][]int64{}
	for _, l := range all {
		of := key{l.name, l.category}
		b := byName[of]
		if b == nil {
			b = &report.TagBlocks{Tag: l.name}
			if l.category != observe.Uncategorized {
				b.Category = l.category.String()
			}
			byName[of] = b
		}
		b.Blocks++
		b.Largest = max(b.Largest, l.bytes)
		if l.born <= peak && (l.age < 0 || l.born+l.age > peak) {
			b.AtPeak += l.bytes
		}
		if l.age < 0 {
			b.Unfreed++
		} else {
			ages[of] = append(ages[of], int64(l.age))
		}
	}
	var tags []report.TagBlocks
	for of, b := range byName {
		if b.MedianAge = -1; len(ages[of]) > 0 {
			b.MedianAge = stats.Median(ages[of])
		}
		tags = append(tags, *b)
	}
	slices.SortFunc(tags, func(a, b report.TagBlocks) int {
		return cmp.Or(cmp.Compare(b.AtPeak, a.AtPeak), cmp.Compare(b.Largest, a.Largest), cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Category, b.Category))
	})
	return tags
}

// sizeCells counts the blocks by size and lifetime.
func sizeCells(all []lifetime) []report.SizeCell {
	cells := map[[2]int]report.SizeCell{}
	for _, l := range all {
		key := [2]int{bits.Len64(uint64(max(l.bytes, 1))) - 1, -1}
		if l.age >= 0 {
			key[1] = bits.Len64(uint64(l.age)) - 1
		}
		c := cells[key]
		cells[key] = report.SizeCell{Size: key[0], Age: key[1], Blocks: c.Blocks + 1, Bytes: c.Bytes + l.bytes}
	}
	return slices.SortedFunc(maps.Values(cells), func(a, b report.SizeCell) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Age, b.Age)) })
}
