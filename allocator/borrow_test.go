package allocator_test

import (
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

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
					r.share(b, 1, 2)
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

// TestFullDevice has another program take the rest of the device. While the device is full, requests
// that memory of other streams can serve do not ask the driver. Once a Trim, or a request that nothing
// else serves, finds memory again, streams grow before they take each other's.
func TestFullDevice(t *testing.T) {
	const unit, units = 2 << 20, 64
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, trim := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/trim=%v", kind, trim), func(t *testing.T) {
				d := allocatortest.NewFake(units * unit)
				r := newRigOn(t, d, allocator.PoolOptions{Segments: kind, MaxSegmentBytes: unit, Slack: 1})
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
				if got := r.Stats().DriverMallocs - asked; got != 0 || d.Calls("WaitEvent") < 4 {
					t.Errorf("with a full device, the driver was called %d times in 4 requests; streams waited %d times", got, d.Calls("WaitEvent"))
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
				waited := d.Calls("WaitEvent")
				taken = append(taken, alloc(8, 1)...)
				if got := d.Calls("WaitEvent") - waited; got != 0 {
					t.Errorf("with more to be had, stream 1 waited for stream 2 %d times in 8 requests", got)
				}
				r.freeAll(taken, 1)
				r.freeAll(others[16:], 2)
				r.close()
			})
		}
	}
}
