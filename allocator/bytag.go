package allocator

import (
	"cmp"
	"slices"
)

// TagBytes is what the blocks of one tag hold.
type TagBytes struct {
	Tag    string `json:"tag"`
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"` // as asked for
}

// ByTag sums up blocks, such as [Allocator] Live returns them, by tag: most bytes first.
func ByTag(blocks []LiveBlock) []TagBytes {
	var tags []TagBytes
	at := map[string]int{}
	for _, b := range blocks {
		i, seen := at[b.Tag]
		if !seen {
			i = len(tags)
			at[b.Tag] = i
			tags = append(tags, TagBytes{Tag: b.Tag})
		}
		tags[i].Blocks++
		tags[i].Bytes += b.Bytes
	}
	slices.SortFunc(tags, func(a, b TagBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Tag, b.Tag))
	})
	return tags
}
