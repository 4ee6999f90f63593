package allocator_test

import (
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestStreamsKeepTheirOwn has one stream free a lot before another grows: as long as the
// driver has more, memory of the other stream is taken now and then, which costs an event,
// and once the driver is full all of it is, however many streams have it.
func TestStreamsKeepTheirOwn(t *testing.T) {
	const unit, freed, requests = 2 << 20, 300, 300
	for _, idle := range []int{0, 5, 40} { // streams that have nothing to give
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d idle streams/whole segments=%v", idle, whole), func(t *testing.T) {
				bytes := int64(unit)
				if !whole {
					bytes = unit / 2
				}
				r := newRig(t, allocator.PoolOptions{
					Segments: allocator.SegmentsMalloc, SegmentBytes: unit, MaxSegmentBytes: unit, MaxBytes: (int64(idle) + freed + requests/2) * unit,
				})
				var others, kept, blocks []allocator.Block
				for s := range idle {
					others = append(others, r.alloc(unit, allocator.Stream(100+s)))
				}
				var free []allocator.Block
				for range freed {
					free = append(free, r.alloc(bytes, 2))
					if !whole {
						kept = append(kept, r.alloc(unit-bytes, 2))
					}
				}
				r.freeAll(free, 2)

				events := func() int64 { // a record and a wait for each move
					st := r.Stats()
					return st.DriverCalls - st.DriverMallocs
				}
				before := events()
				for range requests / 2 {
					blocks = append(blocks, r.alloc(bytes, 1))
				}
				if moves := (events() - before) / 2; moves < 1 || moves > 1+requests/2/128 {
					t.Errorf("memory was taken from another stream %d times in %d requests", moves, requests/2)
				}
				for range freed {
					blocks = append(blocks, r.alloc(bytes, 1))
				}
				r.check()
				r.freeAll(blocks, 1)
				r.freeAll(kept, 2)
				for s, b := range others {
					r.must(r.Free(b, allocator.Stream(100+s)))
				}
				r.close()
			})
		}
	}
}

// TestUnusedSegmentsMove takes memory from a stream that has one unused segment: it moves as a whole, after
// which the block costs no event.
func TestUnusedSegmentsMove(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		segment, bytes int64
	}{
		{8 * mib, mib},
		{32 * mib, 8 * mib},
		{64 * mib, mib},
	} {
		t.Run(fmt.Sprintf("%d of %d MiB", c.bytes/mib, c.segment/mib), func(t *testing.T) {
			// The default strategy would cache the freed block.
			r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Strategy: "bestfit"})
			r.must(r.Free(r.alloc(c.segment, 2), 2))
			before := r.Stats()
			b := r.alloc(c.bytes, 1)
			taken := r.Stats()
			r.must(r.Free(b, 1))
			if calls := r.Stats().DriverCalls - taken.DriverCalls; calls > 0 {
				t.Errorf("%d driver calls to free the block, want none", calls)
			}
			if got := r.Stats().Reserved; got != before.Reserved {
				t.Errorf("%d bytes reserved, before %d", got, before.Reserved)
			}
			r.close()
		})
	}
}

// TestReleasedWhileItWaits releases a stream one of whose blocks still waits for another stream. The
// block serves a third stream under any policy once that work is found done, and earlier if the policy
// makes the third stream wait. If queries fail, the driver must give more memory.
func TestReleasedWhileItWaits(t *testing.T) {
	const bytes = 8 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			for _, c := range []struct {
				name   string
				end    func(f *allocatortest.Fake)
				reused bool
			}{
				{"done", (*allocatortest.Fake).Finish, true},
				{"not done", func(*allocatortest.Fake) {}, policy == allocator.ReuseWait},
				{"refused", func(f *allocatortest.Fake) { f.Finish(); f.FailAt(1, "QueryEvent") }, false},
			} {
				t.Run(fmt.Sprintf("%s/%v/%s", kind, policy, c.name), func(t *testing.T) {
					r := newRig(t, allocator.PoolOptions{Segments: kind, Reuse: policy})
					b, kept := r.alloc(bytes, 1), r.alloc(bytes, 1)
					r.must(r.RecordStream(b, 2))
					r.fake.Order(1, 2)
					r.must(r.Use(b, 2))
					r.must(r.Free(b, 1))
					r.must(r.pool.ReleaseStream(1))
					c.end(r.fake)
					before := r.Stats().Reserved
					other := r.alloc(bytes, 3)
					if reused := r.Stats().Reserved == before; reused != c.reused {
						t.Errorf("the block was reused: %v, want %v", reused, c.reused)
					}
					r.check()
					r.must(r.Free(other, 3))
					r.fake.Order(1, 3)
					r.must(r.Free(kept, 3))
					r.close()
				})
			}
		}
	}
}

// waits is a driver that counts how often a stream is made to wait for another.
type waits struct {
	*allocatortest.Fake
	count int
}

func (d *waits) WaitEvent(s, event uintptr) error {
	d.count++
	return d.Fake.WaitEvent(s, event)
}

// TestWaitsForOneBlock frees blocks that another stream still uses, one for each round of
// work. While the driver has more, only the policy to wait has the stream wait, for one
// block a request, and only where rounds ahead of the device hold memory for nothing.
func TestWaitsForOneBlock(t *testing.T) {
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, c := range []struct {
			policy allocator.Reuse
			waits  int
		}{{allocator.ReuseWait, 1}, {allocator.ReuseOpportunistic, 0}, {allocator.ReuseSameStream, 0}} {
			t.Run(fmt.Sprintf("%s/%v", kind, c.policy), func(t *testing.T) {
				d := &waits{Fake: allocatortest.NewFake(deviceBytes)}
				p := newPool(t, d, allocator.PoolOptions{Segments: kind, Reuse: c.policy})
				r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
				for round := range 8 {
					before := d.count
					b := r.alloc(8<<20, 1)
					want := 0
					if round >= 4 {
						want = c.waits
					}
					if got := d.count - before; got != want {
						t.Errorf("round %d: stream 1 waited %d times, want %d", round, got, want)
					}
					r.must(r.RecordStream(b, 2))
					r.fake.Order(1, 2)
					r.must(r.Use(b, 2))
					r.must(r.Free(b, 1))
				}
				r.close()
			})
		}
	}
}

// TestFullDevice has another program take the rest of the device. While the device is full, requests
// that memory of other streams can serve do not ask the driver. Once a Trim, or a request that nothing
// else serves, finds memory again, streams grow before they take each other's.
func TestFullDevice(t *testing.T) {
	const unit, units = 2 << 20, 64
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, trim := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/trim=%v", kind, trim), func(t *testing.T) {
				d := &waits{Fake: allocatortest.NewFake(units * unit)}
				p := newPool(t, d, allocator.PoolOptions{Segments: kind, MaxSegmentBytes: unit, Slack: 1})
				r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
				alloc := func(n int, on allocator.Stream) (blocks []allocator.Block) {
					for range n {
						blocks = append(blocks, r.alloc(unit, on))
					}
					return blocks
				}
				peak := alloc(units, 2)
				others := peak[:units/2]
				r.freeAll(peak[units/2:], 2)
				r.must(r.Trim(0))
				program, err := d.Malloc(units / 2 * unit)
				r.must(err)
				r.freeAll(others[:8], 2)

				taken := alloc(4, 1)
				asked := r.Stats().DriverMallocs
				taken = append(taken, alloc(4, 1)...)
				if got := r.Stats().DriverMallocs - asked; got != 0 || d.count < 4 {
					t.Errorf("with a full device, the driver was called %d times in 4 requests; streams waited %d times", got, d.count)
				}

				r.must(d.Free(program))
				if trim {
					r.freeAll(taken, 1)
					r.must(r.Trim(0))
					taken = nil
				} else {
					taken = append(taken, alloc(1, 1)...)
				}
				r.freeAll(others[8:16], 2)
				waited := d.count
				taken = append(taken, alloc(8, 1)...)
				if got := d.count - waited; got != 0 {
					t.Errorf("with more to be had, stream 1 waited for stream 2 %d times in 8 requests", got)
				}
				r.freeAll(taken, 1)
				r.freeAll(others[16:], 2)
				r.close()
			})
		}
	}
}

// TestBusySlack frees memory on one stream and requests it on another. Within BusySlack the pool grows if the
// work on the memory is not done, beyond it the stream waits, and if the work is done neither happens.
func TestBusySlack(t *testing.T) {
	const bytes = 64 << 20
	for _, c := range []struct {
		slack    float64
		done     bool
		reserved []int64 // in blocks, after the request of each of several streams in turn
	}{{0, false, []int64{1, 1, 1, 1}}, {1, true, []int64{1, 1, 1, 1}}, {1, false, []int64{1, 2, 2, 2}}, {2, false, []int64{1, 2, 3, 3}}} {
		r := newRigOn(t, allocatortest.NewFake(16*bytes), allocator.PoolOptions{BusySlack: c.slack, Segments: allocator.SegmentsVirtual})
		for i, want := range c.reserved {
			on := allocator.Stream(1 + i)
			b := r.alloc(bytes, on)
			if got := r.Stats().Reserved / bytes; got != want {
				t.Errorf("%+v: stream %d: %d blocks reserved", c, on, got)
			}
			r.must(r.Use(b, on))
			r.must(r.Free(b, on))
			if c.done {
				r.fake.Finish()
			}
		}
		r.check()
		r.close()
	}
}
