package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestRefusedBesidePieces requests more than the device has free and the pool has in whole pages or
// segments, but less than the sum of its fragments. The pool keeps its memory, takes nothing meanwhile,
// and asks the driver for little but whether work is done.
func TestRefusedBesidePieces(t *testing.T) {
	const mib, device, pieces, most = 1 << 20, 1 << 30, 300, 16
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			for _, limit := range []int64{0, 1000 * mib} {
				for _, waiting := range []bool{false, true} {
					for _, streams := range []int{1, 100} {
						t.Run(fmt.Sprintf("%s/%v/limit %d/waiting=%v/%d streams", kind, policy, limit, waiting, streams), func(t *testing.T) {
							d := &created{Fake: allocatortest.NewFake(device)}
							r := newRigOver(t, d, d.Fake, allocator.PoolOptions{Segments: kind, Reuse: policy, MaxBytes: limit})
							var kept, freed []modelBlock
							for i := range pieces {
								on := allocator.Stream(1 + i*streams/pieces)
								kept = append(kept, modelBlock{r.alloc(mib, on), on})
								freed = append(freed, modelBlock{r.alloc(mib, on), on})
							}
							freed = append(freed, modelBlock{r.alloc(100*mib, 2), 2})
							for _, b := range freed {
								if waiting {
									r.share(b.Block, b.on, 1000)
								}
								r.must(r.Free(b.Block, b.on))
							}
							before := r.Stats()
							d.most = d.now
							for i, bytes := range []int64{device + 1, 900 * mib, 500 * mib, 500 * mib, 700 * mib} {
								asked := r.Stats()
								if _, err := r.Alloc(bytes, 3, "too much"); err == nil {
									t.Fatalf("%d bytes were handed out", bytes)
								}
								hopeless := i < 2 // all pieces together are not enough
								calls := int64(2)
								if waiting && i <= 2 && !(hopeless && streams == 1) {
									calls += int64(most + streams + 2) // two to order a stream whose memory it takes
								}
								got := r.Stats()
								if n := got.DriverCalls - asked.DriverCalls; n > calls || hopeless && got.HostWaits > asked.HostWaits {
									t.Errorf("request %d, for %d MiB: %d driver calls, want at most %d; %d host waits", i, bytes/mib, n, calls, got.HostWaits-asked.HostWaits)
								}
							}
							if st := r.Stats(); st.Reserved != before.Reserved || d.most != d.now || !waiting && st.HostWaits > before.HostWaits {
								t.Errorf("%+v became %+v, of at most %d bytes", before, st, d.most)
							}
							for _, b := range kept {
								r.must(r.Free(b.Block, b.on))
							}
							r.close()
						})
					}
				}
			}
		}
	}
}

// created is a driver that records the peak of its created memory.
type created struct {
	*allocatortest.Fake
	now, most int64
	blind     bool // it does not say what is free
}

func (d *created) CreatePages(bytes int64) (uintptr, error) {
	pages, err := d.Fake.CreatePages(bytes)
	if err == nil {
		d.now += bytes
		d.most = max(d.most, d.now)
	}
	return pages, err
}

func (d *created) MemInfo() (free, total int64, err error) {
	if d.blind {
		return 0, 0, errors.New("not known")
	}
	return d.Fake.MemInfo()
}

// TestPeakIsForgotten hands out 8 GiB once, and then little at a time to one stream after the other.
// After Trim the pool reserves only the memory handed out, and after ResetPeaks no more than before.
func TestPeakIsForgotten(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		name   string
		forget func(r *rig) error
		most   int64
	}{
		{"Trim", func(r *rig) error { return r.Trim(0) }, 64 * mib},
		{"ResetPeaks", func(r *rig) error { r.ResetPeaks(); return nil }, 8 * gib},
	} {
		r := newRigOn(t, allocatortest.NewFake(16*gib), allocator.PoolOptions{})
		r.must(r.Free(r.alloc(8*gib, 1), 1))
		r.must(c.forget(r))
		for on := range allocator.Stream(32) {
			for range 3 {
				b := r.alloc(64*mib, on)
				if got := r.Stats().Reserved; got > c.most {
					t.Fatalf("%s: %d MiB reserved on stream %d for 64 at a time, want at most %d", c.name, got/mib, on, c.most/mib)
				}
				r.must(r.Free(b, on))
			}
		}
		r.close()
	}
}

// TestCollectionSettles repeats a program that needs more than the garbage-collection threshold. After
// a few rounds nothing is collected, and the driver is called as rarely as without a threshold.
func TestCollectionSettles(t *testing.T) {
	skipUnderRace(t)
	const limit, slots, largest = 256 << 20, 64, 4 << 20
	calls := func(o allocator.PoolOptions, streams int) int64 {
		r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(smallPage), o)
		round := func() {
			random := rand.New(rand.NewPCG(1, 2))
			var live []modelBlock
			free := func(i int) {
				r.must(r.Free(live[i].Block, live[i].on))
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			}
			for range 1000 {
				if i := random.IntN(slots); i < len(live) {
					free(i)
					continue
				}
				on := allocator.Stream(1 + random.IntN(streams))
				live = append(live, modelBlock{r.alloc(1+random.Int64N(largest), on), on})
			}
			for len(live) > 0 {
				free(0)
			}
		}
		for range 10 {
			round()
		}
		before := r.Stats()
		for range 5 {
			round()
		}
		after := r.Stats()
		r.close()
		return after.DriverCalls - before.DriverCalls
	}
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, streams := range []int{1, 4} {
			o := allocator.PoolOptions{Segments: kind, MaxBytes: limit}
			without := calls(o, streams)
			for _, threshold := range []float64{0.01, 0.25} {
				o.GCThreshold = threshold
				if got := calls(o, streams); got > 2*without {
					t.Errorf("%s, %d streams, threshold %v: %d driver calls, without %d", kind, streams, threshold, got, without)
				}
			}
		}
	}
}

// TestAsksWhatIsFree has a pool grow by requests that need several chunks each. The pool asks for the free bytes of
// the device once for each time that they halve, and again after the driver refused memory that another program took.
func TestAsksWhatIsFree(t *testing.T) {
	const mib, block = 1 << 20, 40 << 20
	for _, c := range []struct {
		device, taken int64 // bytes of the device, and of the other program after half of the requests
		requests, ask int   // with memory, and calls of MemInfo for them
	}{
		{device: 16 << 30, requests: 100, ask: 1},
		{device: 5 << 30, requests: 100, ask: 3},
		{device: 16 << 30, taken: 14 << 30, requests: 40, ask: 1},
	} {
		r := newRigOn(t, allocatortest.NewFake(c.device), allocator.PoolOptions{})
		var blocks []allocator.Block
		var other uintptr
		for i := range c.requests {
			blocks = append(blocks, r.alloc(block, 1))
			if c.taken > 0 && i == c.requests/2 {
				var err error
				other, err = r.fake.Malloc(c.taken)
				r.must(err)
			}
		}
		if got := r.fake.Calls("MemInfo"); got > c.ask {
			t.Errorf("a device of %d MiB: %d calls of MemInfo, want at most %d", c.device/mib, got, c.ask)
		}
		before := r.Stats().Reserved
		for range 2 {
			var full *allocator.OutOfMemoryError
			left := c.device - before - c.taken
			if _, err := r.Alloc(left+block, 1, "too much"); !errors.As(err, &full) || full.DeviceFree != left {
				t.Errorf("a device of %d MiB: error %v for more than the %d bytes left", c.device/mib, err, left)
			}
		}
		if got := r.Stats().Reserved; got != before {
			t.Errorf("a device of %d MiB: %d bytes reserved, %d before a request failed", c.device/mib, got, before)
		}
		if other != 0 {
			r.must(r.fake.Free(other))
		}
		r.freeAll(blocks, 1)
		r.close()
	}
}

// hidden is a device that says that none of its memory is free, as one may whose memory is the host's.
type hidden struct{ *allocatortest.Fake }

func (hidden) MemInfo() (free, total int64, err error) { return 0, 1 << 30, nil }

// TestDriverDecides requests what takes one call of the driver. The driver decides whether there is memory.
func TestDriverDecides(t *testing.T) {
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		p := newPool(t, hidden{allocatortest.NewFake(1 << 30)}, allocator.PoolOptions{Segments: kind})
		for _, bytes := range []int64{1 << 20, 4 << 20, 8 << 20} {
			b, err := p.Alloc(bytes, 1, "")
			if err == nil {
				err = p.Free(b, 1)
			}
			if err != nil {
				t.Errorf("%s, %d bytes: %v", kind, bytes, err)
			}
		}
		must.OK(t, p.Close())
	}
}
