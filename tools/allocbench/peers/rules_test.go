package peers

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// An op is a call of a script. Blocks have letters for names.
type op struct {
	do     string // alloc, free, record (a use on stream), done (the work on stream), trim or pool (bytes is its number)
	block  string
	bytes  int64
	stream allocator.Stream

	reserved int64  // MiB after the call
	at       string // the block whose address the new one must have, or empty
}

// names has the names of the peers.
var names = []string{"torch", "torch-expandable"}

// open returns the peer with a name, on d.
func open(name string, d allocator.PageDriver) Peer {
	if name == "torch-expandable" {
		return TorchExpandable(d, Settings{})
	}
	return Torch(d, settings[name])
}

// settings are those of the peers in rules.
var settings = map[string]Settings{
	"max_split": {MaxSplitBytes: 30 * mib},
	"roundup":   {RoundUpDivisions: 4},
	"garbage":   {GarbageThreshold: 65 * mib},
}

// A clock is a device on which an event is pending until the test clears it.
type clock struct {
	allocator.PageDriver
	stream  map[uintptr]uintptr // by event
	pending map[uintptr]bool    // events
}

// counted returns a device whose addresses fall, as torch.go says of GPUs.
func counted() *allocatortest.Fake { return allocatortest.NewFake(1 << 40).Unchecked() }

func newClock(d allocator.PageDriver) *clock {
	return &clock{d, map[uintptr]uintptr{}, map[uintptr]bool{}}
}

func (c *clock) RecordEvent(event, s uintptr) error {
	c.stream[event], c.pending[event] = s, true
	return nil
}

func (c *clock) QueryEvent(event uintptr) (bool, error) { return !c.pending[event], nil }

func (c *clock) SyncEvent(event uintptr) error {
	c.pending[event] = false
	return nil
}

var sizeRules = []struct {
	name              string
	bytes             int64
	torch, expandable int64 // reserved, in MiB
}{
	{"a byte", 1, 2, 2},
	{"the largest small", mib, 2, 2},
	{"rounded to the largest small", mib - 511, 2, 2},
	{"the smallest large", mib + 1, 20, 20},
	{"the largest that shares a segment", 10*mib - 512, 20, 20},
	{"rounded to one of its own", 10*mib - 511, 10, 20},
	{"one of its own, rounded up", 11*mib + 1, 12, 20},
	{"a page", 20 * mib, 20, 20},
	{"more than a page", 20*mib + 1, 22, 40},
	{"many pages", 333 * mib, 334, 340},
}

func TestSegmentSizes(t *testing.T) {
	for _, c := range sizeRules {
		for name, want := range map[string]int64{"torch": c.torch, "torch-expandable": c.expandable} {
			runScript(t, c.name+" "+name, name, 1<<40, []op{{do: "alloc", block: "a", bytes: c.bytes, reserved: want}})
		}
	}
}

var rules = []struct {
	name, peer string
	total      int64 // of the device, in MiB; 0 is plenty
	script     []op
}{
	{"small blocks share a segment", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: mib, reserved: 2},
		{do: "alloc", block: "b", bytes: mib - 512, reserved: 2},
		{do: "alloc", block: "c", bytes: 512, reserved: 2},
		{do: "alloc", block: "d", bytes: 1, reserved: 4},
	}},
	{"streams and pools share nothing", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: kib, reserved: 2},
		{do: "alloc", block: "b", bytes: kib, stream: 1, reserved: 4},
		{do: "alloc", block: "c", bytes: 5 * mib, reserved: 24},
		{do: "free", block: "c", reserved: 24},
		{do: "alloc", block: "d", bytes: 5 * mib, stream: 1, reserved: 44},
		{do: "alloc", block: "e", bytes: 2 * mib, reserved: 44, at: "c"},
	}},
	{"a large rest of 1 MiB stays with the block", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 9*mib + 512*kib, reserved: 20},
		{do: "alloc", block: "b", bytes: 9*mib + 512*kib, reserved: 20},
		{do: "alloc", block: "c", bytes: mib + 512, reserved: 40},
	}},
	{"one of more is split off", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 9*mib + 512*kib, reserved: 20},
		{do: "alloc", block: "b", bytes: 9*mib + 512*kib - 512, reserved: 20},
		{do: "alloc", block: "c", bytes: mib + 512, reserved: 20},
	}},
	{"the smallest that fits, then the lowest", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 30 * mib, reserved: 30},
		{do: "alloc", block: "b", bytes: 20 * mib, reserved: 50},
		{do: "alloc", block: "c", bytes: 20 * mib, reserved: 70},
		{do: "free", block: "a", reserved: 70},
		{do: "free", block: "c", reserved: 70},
		{do: "free", block: "b", reserved: 70},
		{do: "alloc", block: "d", bytes: 19 * mib, reserved: 70, at: "b"}, // addresses rise
		{do: "alloc", block: "e", bytes: 19 * mib, reserved: 70, at: "c"},
		{do: "alloc", block: "f", bytes: 19 * mib, reserved: 70, at: "a"},
		{do: "alloc", block: "g", bytes: 11 * mib, reserved: 70}, // the rest of a
		{do: "alloc", block: "h", bytes: 11 * mib, reserved: 82},
	}},
	{"neighbours coalesce", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 5 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 5 * mib, reserved: 20},
		{do: "alloc", block: "c", bytes: 5 * mib, reserved: 20},
		{do: "free", block: "a", reserved: 20},
		{do: "free", block: "c", reserved: 20},
		{do: "free", block: "b", reserved: 20},
		{do: "alloc", block: "d", bytes: 20 * mib, reserved: 20, at: "a"},
	}},
	{"a recorded stream is waited for, not reused before", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 10 * mib, reserved: 10},
		{do: "record", block: "a", stream: 3, reserved: 10},
		{do: "free", block: "a", reserved: 10},
		{do: "alloc", block: "b", bytes: 10 * mib, reserved: 20},
		{do: "done", stream: 3, reserved: 20},
		{do: "alloc", block: "c", bytes: 10 * mib, reserved: 20, at: "a"},
	}},
	{"the own stream is not waited for", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 10 * mib, reserved: 10},
		{do: "record", block: "a", reserved: 10},
		{do: "free", block: "a", reserved: 10},
		{do: "alloc", block: "b", bytes: 10 * mib, reserved: 10, at: "a"},
	}},
	{"a free on another stream is a use there", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 10 * mib, reserved: 10},
		{do: "free", block: "a", stream: 5, reserved: 10},
		{do: "alloc", block: "b", bytes: 10 * mib, reserved: 20},
		{do: "done", stream: 5, reserved: 20},
		{do: "alloc", block: "c", bytes: 10 * mib, reserved: 20, at: "a"},
	}},
	{"out of memory releases whole segments, and waits for events", "torch", 64, []op{
		{do: "alloc", block: "a", bytes: 20 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 5 * mib, reserved: 40},
		{do: "alloc", block: "c", bytes: 20 * mib, stream: 1, reserved: 60},
		{do: "record", block: "c", stream: 2, reserved: 60},
		{do: "free", block: "c", stream: 1, reserved: 60},
		{do: "free", block: "a", reserved: 60},
		{do: "alloc", block: "d", bytes: 30 * mib, reserved: 20 + 30},
	}},
	{"empty_cache keeps split segments", "torch", 0, []op{
		{do: "alloc", block: "a", bytes: 5 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 12 * mib, reserved: 20},
		{do: "alloc", block: "c", bytes: 12 * mib, reserved: 32},
		{do: "free", block: "b", reserved: 32},
		{do: "free", block: "c", reserved: 32},
		{do: "trim", reserved: 20},
	}},

	{"a segment grows by what the last free block lacks", "torch-expandable", 0, []op{
		{do: "alloc", block: "a", bytes: 15 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 25 * mib, reserved: 40},
		{do: "alloc", block: "c", bytes: mib + 1, reserved: 60},
		{do: "free", block: "b", reserved: 60},
		{do: "free", block: "a", reserved: 60},
		{do: "alloc", block: "d", bytes: 40 * mib, reserved: 60, at: "a"},
	}},
	{"512 bytes are split off in the large pool", "torch-expandable", 0, []op{
		{do: "alloc", block: "a", bytes: 10*mib - 512, reserved: 20},
		{do: "alloc", block: "b", bytes: 10*mib - 512, reserved: 20},
		{do: "free", block: "a", reserved: 20},
		{do: "alloc", block: "c", bytes: 10*mib - 1024, reserved: 20, at: "a"},
	}},
	{"the end of what is mapped comes last", "torch-expandable", 0, []op{
		{do: "alloc", block: "a", bytes: 13 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 2 * mib, reserved: 20}, // 5 MiB are free at the end
		{do: "free", block: "a", reserved: 20},
		{do: "alloc", block: "c", bytes: 4 * mib, reserved: 20, at: "a"},
	}},
	{"out of memory unmaps whole pages, which fill again from below", "torch-expandable", 120, []op{
		{do: "alloc", block: "a", bytes: 50 * mib, reserved: 60},
		{do: "alloc", block: "b", bytes: 10 * mib, reserved: 60},
		{do: "free", block: "a", reserved: 60},
		{do: "alloc", block: "c", bytes: 75 * mib, stream: 1, reserved: 20 + 80}, // the page of b stays, with 10 free MiB
		{do: "free", block: "c", stream: 1, reserved: 100},
		{do: "alloc", block: "d", bytes: 30 * mib, reserved: 20 + 40, at: "a"}, // the pages of c went
		{do: "alloc", block: "e", bytes: 20 * mib, reserved: 60},               // between d and b
		{do: "free", block: "e", reserved: 60},
		{do: "free", block: "d", reserved: 60},
		{do: "trim", reserved: 20},
	}},
	{"pages that are not enough are no peak", "torch-expandable", 130, []op{
		{do: "alloc", block: "a", bytes: 20 * mib, reserved: 20},
		{do: "alloc", block: "b", bytes: 60 * mib, stream: 1, reserved: 80},
		{do: "free", block: "b", stream: 1, reserved: 80},
		{do: "alloc", block: "c", bytes: 60 * mib, stream: 2, reserved: 80}, // 40 MiB there are, and 60 without b
	}},
	{"a long block is not cut and serves no short request", "max_split", 0, []op{
		{do: "alloc", block: "a", bytes: 60 * mib, reserved: 60},
		{do: "free", block: "a", reserved: 60},
		{do: "alloc", block: "b", bytes: 12 * mib, reserved: 72},
		{do: "alloc", block: "c", bytes: 40 * mib, reserved: 112},          // 20 MiB shorter than a
		{do: "alloc", block: "d", bytes: 41 * mib, reserved: 112, at: "a"}, // not cut
		{do: "alloc", block: "e", bytes: 12 * mib, reserved: 124},
	}},
	{"sizes are rounded up to a quarter of a power of two", "roundup", 0, []op{
		{do: "alloc", block: "a", bytes: 33 * mib, reserved: 40},
		{do: "alloc", block: "b", bytes: 40 * mib, reserved: 80},
		{do: "alloc", block: "c", bytes: 64 * mib, reserved: 144},
		{do: "alloc", block: "d", bytes: 2047, reserved: 146},
	}},
	{"above the threshold the oldest whole segments are released", "garbage", 0, []op{
		{do: "alloc", block: "a", bytes: 30 * mib, reserved: 30},
		{do: "alloc", block: "b", bytes: 20 * mib, reserved: 50},
		{do: "alloc", block: "c", bytes: 10 * mib, reserved: 60},
		{do: "free", block: "c", reserved: 60},
		{do: "alloc", block: "d", bytes: 12 * mib, reserved: 72}, // the threshold is not exceeded before
		{do: "free", block: "b", reserved: 72},
		{do: "alloc", block: "e", bytes: 40 * mib, reserved: 102}, // c is older than b
	}},
}

// TestPrivatePools checks that memory stays in its pool, and in a private one until the end.
func TestPrivatePools(t *testing.T) {
	for _, name := range names {
		runScript(t, name, name, 1<<40, []op{
			{do: "alloc", block: "a", bytes: 4 * mib, reserved: 20},
			{do: "free", block: "a", reserved: 20},
			{do: "pool", bytes: 1, reserved: 20},
			{do: "alloc", block: "b", bytes: 4 * mib, reserved: 40},
			{do: "free", block: "b", reserved: 40},
			{do: "pool", bytes: 2, reserved: 40},
			{do: "alloc", block: "small", bytes: kib, reserved: 42},
			{do: "free", block: "small", reserved: 42},
			{do: "pool", reserved: 42},
			{do: "alloc", block: "c", bytes: 4 * mib, at: "a", reserved: 42},
			{do: "free", block: "c", reserved: 42},
			{do: "trim", reserved: 22},
			{do: "pool", bytes: 1, reserved: 22},
			{do: "alloc", block: "d", bytes: 4 * mib, at: "b", reserved: 22},
			{do: "free", block: "d", reserved: 22},
		})
	}
}

func TestRules(t *testing.T) {
	for _, c := range rules {
		total := c.total * mib
		if total == 0 {
			total = 1 << 40
		}
		runScript(t, c.name, c.peer, total, c.script)
	}
}

// runScript runs a script on a peer, and frees the remaining blocks.
func runScript(t *testing.T, name, peer string, total int64, script []op) {
	t.Run(name, func(t *testing.T) {
		fake := allocatortest.NewFake(total)
		device := newClock(fake)
		a := open(peer, device)
		known := map[string]uintptr{}
		live := map[string]uintptr{}
		highest := int64(0)
		for i, o := range script {
			var err error
			switch o.do {
			case "alloc":
				var addr uintptr
				if addr, err = a.MallocAsync(o.bytes, o.stream); err == nil {
					if want, ok := known[o.at]; ok && addr != want {
						t.Errorf("step %d: %s lies at %#x, not at %#x as %s", i, o.block, addr, want, o.at)
					}
					known[o.block], live[o.block] = addr, addr
				}
			case "free":
				err = a.FreeAsync(live[o.block], o.stream)
				delete(live, o.block)
			case "record":
				err = a.RecordStream(live[o.block], o.stream)
			case "done":
				for event, s := range device.stream {
					device.pending[event] = device.pending[event] && s != o.stream
				}
			case "trim":
				err = a.TrimPool(0)
			case "pool":
				a.UsePool(int32(o.bytes))
			default:
				t.Fatalf("step %d: %q is no call", i, o.do)
			}
			if err != nil {
				t.Fatalf("step %d: %s %s: %v", i, o.do, o.block, err)
			}
			reserved, peak, err := a.PoolReserved()
			free, _, memErr := fake.MemInfo()
			highest = max(highest, o.reserved*mib)
			if err := errors.Join(err, memErr); err != nil || reserved != o.reserved*mib || peak != highest || total-free != reserved {
				t.Fatalf("step %d: after %s %s %d bytes are reserved, want %d MiB; peak %d, want %d; of the device %d, error %v",
					i, o.do, o.block, reserved, o.reserved, peak, highest, total-free, err)
			}
			checkMap(t, i, a.Map(), live, reserved)
		}
		if err := a.ClosePool(); (err != nil) != (len(live) > 0) {
			t.Errorf("ClosePool with %d blocks handed out: %v", len(live), err)
		}
		for block, addr := range live {
			if err := a.FreeAsync(addr, 0); err != nil {
				t.Errorf("free %s: %v", block, err)
			}
		}
		if err := a.ClosePool(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(fake.Faults(), fake.Leftover()); err != nil {
			t.Error(err)
		}
	})
}

// checkMap checks that a map has the live blocks, covers its segments and adds up to the reserved bytes.
func checkMap(t *testing.T, step int, m allocator.Map, live map[string]uintptr, reserved int64) {
	t.Helper()
	found, mapped := 0, int64(0)
	for _, s := range m.Segments {
		at := s.Addr
		for _, b := range s.Blocks {
			if b.Addr != at {
				t.Errorf("step %d: block at %#x, want it at %#x", step, b.Addr, at)
			}
			at += uintptr(b.Bytes)
			if b.State != allocator.MapUnmapped {
				mapped += b.Bytes
			}
			if b.State == allocator.MapLive {
				found++
			}
		}
		if at != s.Addr+uintptr(s.Bytes) {
			t.Errorf("step %d: the blocks of %#x end at %#x", step, s.Addr, at)
		}
	}
	if found != len(live) || mapped != reserved {
		t.Errorf("step %d: the map has %d live blocks of %d, and %d bytes of %d", step, found, len(live), mapped, reserved)
	}
}
