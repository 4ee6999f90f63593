package allocator

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// An interval is a block of a recorded step: its size and when it lives, in
// events of the step. offset is where packing puts it.
type interval struct {
	size       int64 // bytes, a multiple of Alignment
	start, end int   // handed out from start until end, exclusive
	offset     int64
}

// packWork bounds the search of pack, in comparisons of two blocks.
const packWork = 2e6

// pack gives each interval an offset such that no two that live at the same time
// overlap, and returns the bytes needed. Packing into the least is NP-hard
// (dynamic storage allocation, problem SR2 of Garey and Johnson). This places
// the blocks first-fit in the order of their start, their size, and size times
// life, and, where none of these meets the lower bound, in random variations of
// the best order so far. The nested lives of a training step meet it at once.
func pack(blocks []interval) int64 {
	bound, best := peakLive(blocks), int64(-1)
	var order []int
	try := func(trial []int) {
		offsets := slices.Clone(blocks)
		if bytes := placeInOrder(offsets, trial); best < 0 || bytes < best {
			best, order = bytes, trial
			copy(blocks, offsets)
		}
	}
	for _, key := range []func(b *interval) int64{
		func(b *interval) int64 { return int64(b.start) },
		func(b *interval) int64 { return -b.size },
		func(b *interval) int64 { return -b.size * int64(b.end-b.start) },
	} {
		trial := make([]int, len(blocks))
		for i := range trial {
			trial[i] = i
		}
		slices.SortStableFunc(trial, func(i, j int) int { return cmp.Compare(key(&blocks[i]), key(&blocks[j])) })
		try(trial)
	}
	random := rand.New(rand.NewPCG(1, uint64(len(blocks))))
	for work := len(blocks); best > bound && work < packWork; work += len(blocks) * len(blocks) {
		trial := slices.Clone(order)
		for range 1 + random.IntN(3) {
			from, to := random.IntN(len(trial)), random.IntN(len(trial))
			moved := trial[from]
			trial = slices.Insert(slices.Delete(trial, from, from+1), to, moved)
		}
		try(trial)
	}
	return best
}

// placeInOrder places each interval, in the given order, at the lowest offset
// that is free during its life, and returns the bytes needed.
func placeInOrder(blocks []interval, order []int) (bytes int64) {
	placed := make([]*interval, 0, len(blocks)) // by offset
	for _, i := range order {
		b := &blocks[i]
		b.offset = 0
		for _, o := range placed {
			if o.start >= b.end || b.start >= o.end {
				continue
			}
			if o.offset >= b.offset+b.size {
				break
			}
			b.offset = max(b.offset, o.offset+o.size)
		}
		at, _ := slices.BinarySearchFunc(placed, b.offset, func(o *interval, offset int64) int {
			return cmp.Compare(o.offset, offset)
		})
		placed = slices.Insert(placed, at, b)
		bytes = max(bytes, b.offset+b.size)
	}
	return bytes
}

// peakLive returns the most bytes that live at once: no packing needs less.
func peakLive(blocks []interval) int64 {
	type change struct {
		at    int
		bytes int64
	}
	var changes []change
	for _, b := range blocks {
		changes = append(changes, change{b.start, b.size}, change{b.end, -b.size})
	}
	slices.SortFunc(changes, func(a, b change) int { // frees first
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bytes, b.bytes))
	})
	var live, peak int64
	for _, c := range changes {
		live += c.bytes
		peak = max(peak, live)
	}
	return peak
}
