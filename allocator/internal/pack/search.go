package pack

import (
	"math"
	"math/rand/v2"
)

// heuristics take turns: the first is better for many blocks, the second for few.
var heuristics = []heuristic{
	{length: 2, size: 1, corner: 4, match: 1},
	{length: 1, size: .5, corner: 4, match: 16},
}

const (
	patience = 60 // placements without gain until the next heuristic's turn
	ambition = 32 // a target is closer to the lower bound by one part in ambition
	blame    = 1. // by how much a priority grows at most, as a part of it
	noise    = .2 // standard deviation of the logarithm of priorities, once each heuristic had a turn
)

// A packer packs spans.
type packer struct {
	spans      []span
	first      []int     // of each section, and of one past the last: the first span of that lo or later
	live       []int64   // of each section: the bytes that live
	need       []int64   // of each section: these and those wasted so far
	priorities []float64 // of each span
	offsets    []int64   // of each span
	skyline    *skyline
	candidates *candidates
	work       int // done so far
}

// newPacker returns one for spans by lo that share a section each with another.
// It makes the first section of them number 0.
func newPacker(spans []span) *packer {
	from := spans[0].lo
	sections := spans[len(spans)-1].hi - from // the last one begins with the last span
	for i := range spans {
		spans[i].lo -= from
		spans[i].hi -= from
	}
	p := &packer{
		spans: spans, first: make([]int, sections+1), live: make([]int64, sections+1), need: make([]int64, sections),
		priorities: make([]float64, len(spans)), offsets: make([]int64, len(spans)),
		skyline: newSkyline(sections), candidates: newCandidates(spans),
	}
	for i := range spans {
		p.first[spans[i].lo+1]++
		p.live[spans[i].lo] += spans[i].size
		p.live[spans[i].hi] -= spans[i].size
	}
	for s := range sections {
		p.first[s+1] += p.first[s]
		p.live[s+1] += p.live[s]
	}
	return p
}

// search gives the spans offsets and returns the bytes needed. It places them at
// least once, and stops at bound or once it has done the work.
func (p *packer) search(bound int64, work int) int64 {
	random := rand.New(rand.NewPCG(1, 2))
	best := int64(unbounded)
	for round := 0; best > bound && p.work < work; round++ {
		h := &heuristics[round%len(heuristics)]
		for i := range p.spans {
			p.priorities[i] = h.priority(&p.spans[i])
			if round >= len(heuristics) {
				p.priorities[i] *= math.Exp(noise * random.NormFloat64())
			}
		}
		for failed := 0; failed < patience && best > bound && p.work < work; {
			target := best
			if best < unbounded {
				target = max(bound, best-max(1, (best-bound)/ambition))
			}
			bytes, section := p.place(h, target, work)
			if section < 0 {
				best, failed = bytes, 0
				for i := range p.spans {
					p.spans[i].offset = p.offsets[i]
				}
				continue
			}
			failed++
			p.raisePriorities(section, random)
		}
	}
	return best
}

// raisePriorities raises those of the blocks that live in the section and have no
// place yet.
func (p *packer) raisePriorities(section int, random *rand.Rand) {
	for i := range p.spans[:p.first[section+1]] {
		if p.spans[i].hi > section && p.candidates.has(i) {
			p.priorities[i] *= 1 + blame*random.Float64()
		}
	}
	p.work += p.first[section+1] / 4
}

// place gives each span an offset, and returns the bytes needed and -1. Where
// these would be more than target it stops, as it does once it has done the work,
// and returns the section where. No target, unbounded, is never missed.
func (p *packer) place(h *heuristic, target int64, work int) (bytes int64, section int) {
	copy(p.need, p.live)
	p.skyline.reset()
	p.candidates.reset(p.priorities)
	p.work += (len(p.spans) + len(p.need)) / 2
	for left := len(p.spans); left > 0; {
		v := p.skyline.lowest()
		i, visits := p.candidates.choose(h, v, p.first[v.lo], p.first[v.lo+1], p.first[v.hi])
		p.work += 1 + visits/2
		if i >= 0 {
			s := &p.spans[i]
			p.offsets[i] = v.height
			bytes = max(bytes, v.height+s.size)
			p.candidates.remove(i)
			p.skyline.raise(v, s.lo, s.hi, v.height+s.size)
			left--
			continue
		}
		height := min(v.before, v.after)
		if target < unbounded {
			p.work += (v.hi - v.lo) / 8
			if section := p.waste(v, height); p.need[section] > target || p.work >= work {
				return 0, section
			}
		}
		p.skyline.raise(v, v.lo, v.hi, height)
	}
	return bytes, -1
}

// waste counts the bytes up to the height in v as wasted, where there still are
// blocks to be placed above it, and returns the section of v with most need.
func (p *packer) waste(v valley, height int64) (section int) {
	section = v.lo
	for s := v.lo; s < v.hi; s++ {
		if p.need[s] > v.height {
			p.need[s] += height - v.height
		}
		if p.need[s] > p.need[section] {
			section = s
		}
	}
	return section
}
