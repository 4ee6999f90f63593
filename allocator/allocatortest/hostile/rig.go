package hostile

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// targets are the allocators that a program can run on.
var targets = []struct {
	name  string
	build func(*rig, *rand.Rand) error
}{
	{"pool", (*rig).buildPool},
	{"async", (*rig).buildAsync},
	{"malloc", (*rig).buildMalloc},
}

// threaded ends the name of a target with several goroutines.
const threaded = "/threads"

// Targets returns the names that Run takes.
func Targets() []string {
	var names []string
	for _, suffix := range []string{"", threaded} {
		for _, t := range targets {
			names = append(names, t.name+suffix)
		}
	}
	return names
}

// A rig is an allocator and its device, with what is known of both.
type rig struct {
	dev    *allocatortest.Fake
	total  int64 // bytes of dev
	page   int64 // bytes of its pages; 0: none
	chance allocatortest.Chance
	top    allocator.Allocator
	about  []string // the options, for people

	pool   *allocator.Pool          // nil: another allocator
	record allocator.StreamRecorder // nil: the allocator has none
	leave  allocator.StreamReleaser
	align  allocator.AlignedAllocator
	trace  *allocator.Trace
	limit  *allocator.Limit
	poison bool
	keeps  bool // a pool with KeepMapped
	reuse  allocator.Reuse
	// pages is the most bytes of pages that a pool may have. A request fails only if it
	// and the pages in use need more. 0 means unknown.
	pages int64
	// most is the largest request, in bytes, that must succeed while no block is live.
	// 0 means unknown.
	most int64
	// reserved returns what Stats.Reserved must be. nil means unknown.
	reserved func() int64
}

// poisonExtra is the bytes that a Poison adds to a block.
const poisonExtra = 2*allocator.Alignment + 3

func (r *rig) say(format string, args ...any) {
	r.about = append(r.about, fmt.Sprintf(format, args...))
}

// device makes the rig's device, of total bytes.
func (r *rig) device(total int64, random *rand.Rand) {
	r.dev, r.total = allocatortest.NewFake(total).Strict().WithoutPages(), total
	r.chance.Random = random
}

// build makes the target's allocator with random options.
func (r *rig) build(target string, random *rand.Rand) error {
	total := int64(1) << (18 + random.IntN(9)) // 256 KiB to 64 MiB
	r.device(total, random)
	r.chance.DoneOneIn = []int{0, 1, 2, 4}[random.IntN(4)]
	r.most, r.reserved = total, r.dev.Used
	r.say("device of %d bytes, one query in %d finds work done", total, r.chance.DoneOneIn)
	name := strings.TrimSuffix(target, threaded)
	for _, t := range targets {
		if t.name == name {
			if err := t.build(r, random); err != nil {
				return err
			}
			r.decorate(random)
			r.finish()
			return nil
		}
	}
	return fmt.Errorf("hostile: no target %q; there are %q", target, Targets())
}

// finish finds what the decorated allocator can do.
func (r *rig) finish() {
	r.leave, _ = allocator.As[allocator.StreamReleaser](r.top)
	if r.leave != nil { // a Poison always has RecordStream
		r.record, _ = allocator.As[allocator.StreamRecorder](r.top)
	}
	r.align, _ = allocator.As[allocator.AlignedAllocator](r.top)
	if r.most < 1024 {
		r.most = 0
		return
	}
	r.most = int64(1) << (bits.Len64(uint64(r.most)) - 1) // what every strategy rounds to
	if r.poison {
		r.most -= poisonExtra
	}
}

// options chooses the options of a pool.
func (r *rig) options(random *rand.Rand) allocator.PoolOptions {
	total := r.total
	names := allocator.Strategies()
	o := allocator.PoolOptions{Strategy: names[random.IntN(len(names))]}
	o.Reuse = []allocator.Reuse{
		allocator.ReuseWait, allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream,
	}[random.IntN(4)]
	if random.IntN(4) > 0 {
		o.SegmentBytes = allocator.Alignment << random.IntN(14)
		if random.IntN(2) == 0 {
			o.MaxSegmentBytes = o.SegmentBytes << random.IntN(8)
		}
	}
	if random.IntN(2) == 0 {
		o.MaxBytes = 64<<10 + random.Int64N(total)
		r.most = min(r.most, o.MaxBytes)
	}
	if random.IntN(8) == 0 {
		o.MaxFraction = 0.1 + 0.9*random.Float64()
		r.most = min(r.most, int64(o.MaxFraction*float64(total)))
	}
	if random.IntN(3) == 0 {
		o.GCThreshold = random.Float64()
	}
	if random.IntN(3) == 0 {
		o.Slack = random.Float64()
	}
	if random.IntN(4) == 0 {
		o.PreallocateBytes = random.Int64N(r.most / 4)
	}
	if random.IntN(8) == 0 {
		o.KeepMapped, o.GCThreshold = true, 0
	}
	r.reuse, r.keeps = o.Reuse, o.KeepMapped
	r.segments(random, &o)
	r.say("%+v", o)
	return o
}

// segments chooses where a pool gets its memory. Half of the devices have pages.
func (r *rig) segments(random *rand.Rand, o *allocator.PoolOptions) {
	if random.IntN(2) == 0 {
		return
	}
	r.page = 1 << (10 + random.IntN(7)) // 1 KiB to 64 KiB
	r.dev.WithPages(r.page)
	r.say("pages of %d bytes", r.page)
	switch k := random.IntN(8); {
	case k == 0:
		o.Segments = allocator.SegmentsMalloc
	case k < 4 && o.Strategy != "buddy" && r.most >= r.page:
		o.Segments = allocator.SegmentsVirtual
	}
}

func (r *rig) buildPool(random *rand.Rand) error {
	o := r.options(random)
	p, err := allocator.NewPool(r.dev, o)
	r.top, r.pool = p, p
	if err != nil {
		return err
	}
	if r.keeps && (p.Segments() == allocator.SegmentsMalloc || r.reuse == allocator.ReuseSameStream) {
		r.most = 0 // memory may be kept where a request cannot use it
	}
	if p.Segments() == allocator.SegmentsVirtual && o.Strategy != "sizeclass" && o.Strategy != "slab" {
		r.pages = r.most // others make blocks larger than was asked for
	}
	return nil
}

func (r *rig) buildAsync(*rand.Rand) error {
	r.top = allocator.NewAsync(r.dev)
	return nil
}

func (r *rig) buildMalloc(*rand.Rand) error {
	r.top = allocator.NewMalloc(r.dev)
	return nil
}

// decorate wraps the allocator of half of the programs.
func (r *rig) decorate(random *rand.Rand) {
	if random.IntN(2) == 0 {
		return
	}
	for _, k := range random.Perm(4) {
		if random.IntN(2) == 0 {
			continue
		}
		switch k {
		case 0:
			most := 64<<10 + random.Int64N(r.total)
			r.limit = allocator.NewLimit(r.top, most)
			r.top, r.most, r.pages = r.limit, min(r.most, most), 0
			r.say("limit %d", most)
		case 1:
			r.trace = allocator.NewTrace(r.top, 1+random.IntN(64))
			r.top = r.trace
			r.say("trace")
		case 2:
			r.top = allocator.NewTimed(r.top)
			r.say("timed")
		case 3:
			r.top, r.poison = allocator.NewPoison(r.top, r.dev), true
			r.trace, r.pages = nil, 0 // which see larger blocks
			r.say("poison")
		}
	}
}

// outOfMemory returns the OutOfMemoryError in err, or nil.
func outOfMemory(err error) *allocator.OutOfMemoryError {
	oom, _ := errors.AsType[*allocator.OutOfMemoryError](err)
	return oom
}
