package plotstyle

import (
	"slices"
	"strings"
)

// AllocatorGroups are the allocators that pictures show, at most a palette's length in each
// group. An allocator has the same colour, dashes and marks in every picture. The allocators
// of other groups that are often compared with the first four have other colours.
var AllocatorGroups = []struct {
	Title      string
	Allocators []string
}{
	{"the pool as it is, and others", []string{"tlsf", "cuda", "slack 1/64", "malloc", "torch", "torch-expandable", "malloc segments", "none"}},
	{"other placements", []string{"firstfit", "nextfit", "arena", "worstfit", "bestfit", "slab", "sizeclass", "buddy"}},
	{"settings and wrappers of the pool", []string{"opportunistic", "same-stream", "trace", "limit", "timed", "slack 1/8", "slack 1/2", "slack 1"}},
}

// Allocator returns the curve number, for Line and Mark, of an allocator by its name in
// allocbench or in train: tlsf, custom, custom:bestfit, custom:slack=1/8. It returns -1 for one that
// is not in AllocatorGroups.
func Allocator(name string) int {
	if option, ok := strings.CutPrefix(name, "custom:"); ok {
		name = strings.Replace(option, "=", " ", 1)
	} else if name == "custom" {
		name = "tlsf"
	}
	for g, group := range AllocatorGroups {
		if i := slices.Index(group.Allocators, name); i >= 0 {
			return g*len(Palette) + i
		}
	}
	return -1
}
