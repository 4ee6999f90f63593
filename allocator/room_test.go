package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestRefusedKeepsMemory requests more than the pool could serve by releasing memory. The pool keeps
// its memory, asks the driver for memory once, and then only how much is free.
func TestRefusedKeepsMemory(t *testing.T) {
	const mib, device = 1 << 20, 1 << 30
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			for _, limit := range []int64{0, device / 2} {
				for _, c := range []struct {
					name string
					// keep says which blocks of 4 MiB stay handed out.
					keep func(i int) bool
					// sizes are asked for: more than there is
					from, to int64
				}{
					{"larger than all there is", func(int) bool { return false }, 1 << 46, device + 1},
					{"with blocks that stay", func(i int) bool { return i < 30 }, 1 << 46, device - 120*mib + 1},
					{"what lies between is too little", func(i int) bool { return i%2 == 0 }, device, device - 200*mib + 1},
				} {
					t.Run(fmt.Sprintf("%s/%v/limit %d/%s", kind, policy, limit, c.name), func(t *testing.T) {
						r := newRigOn(t, allocatortest.NewFake(device), allocator.PoolOptions{Segments: kind, Reuse: policy, MaxBytes: limit})
						var kept, freed []allocator.Block
						for i := range 100 {
							b := r.alloc(4*mib, allocator.Stream(1+i%2))
							if c.keep(i / 2) {
								kept = append(kept, b)
							} else {
								freed = append(freed, b)
							}
						}
						for i, b := range freed {
							r.must(r.Free(b, allocator.Stream(1+i%2)))
						}
						r.fake.Synchronize()
						before := r.Stats()
						refused := int64(0)
						for bytes := c.from; bytes >= c.to; bytes /= 2 {
							for on := range allocator.Stream(3) {
								if _, err := r.Alloc(bytes, on, "too much"); err == nil {
									t.Fatalf("%d bytes were handed out", bytes)
								}
								refused++
							}
						}
						after := r.Stats()
						if after.Reserved != before.Reserved || after.HostWaits != before.HostWaits || after.DriverCalls-before.DriverCalls > refused+2 {
							t.Errorf("%d requests refused: %+v became %+v", refused, before, after)
						}
						for _, b := range kept {
							r.must(r.Free(b, 1))
						}
						r.close()
					})
				}
			}
		}
	}
}

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
							r := &rig{t: t, pool: newPool(t, d, allocator.PoolOptions{Segments: kind, Reuse: policy, MaxBytes: limit}), fake: d.Fake}
							r.Guard = allocatortest.NewGuard(r.pool, d.Fake)
							var kept, freed []modelBlock
							for i := range pieces {
								on := allocator.Stream(1 + i*streams/pieces)
								kept = append(kept, modelBlock{r.alloc(mib, on), on})
								freed = append(freed, modelBlock{r.alloc(mib, on), on})
							}
							freed = append(freed, modelBlock{r.alloc(100*mib, 2), 2})
							for _, b := range freed {
								if waiting {
									r.must(r.RecordStream(b.Block, 1000))
									r.fake.Order(b.on, 1000)
									r.must(r.Use(b.Block, 1000))
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
									calls += int64(most + streams)
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

// TestReleasedAreAsManyAsNeeded has a policy that keeps a stream's memory from another one. Only as
// much goes back to the driver as the other one requests.
func TestReleasedAreAsManyAsNeeded(t *testing.T) {
	const mib, limit = 1 << 20, 512 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		r := newRig(t, allocator.PoolOptions{Segments: kind, Reuse: allocator.ReuseSameStream, MaxBytes: limit, MaxSegmentBytes: 4 * mib})
		var blocks []allocator.Block
		for range 128 {
			blocks = append(blocks, r.alloc(4*mib, 1))
		}
		r.freeAll(blocks, 1)
		before := r.Stats()
		b := r.alloc(16*mib, 2)
		if calls := r.Stats().DriverCalls - before.DriverCalls; r.Stats().Reserved != limit || calls > 40 {
			t.Errorf("%s: %d of %d bytes are reserved after one request for 16 MiB, of %d driver calls", kind, r.Stats().Reserved, limit, calls)
		}
		r.must(r.Free(b, 2))
		r.close()
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

// TestGrowthAsksWhatIsFree requests a little more than the device has. The pool must not take memory
// from other programs meanwhile.
func TestGrowthAsksWhatIsFree(t *testing.T) {
	const mib, device, others = 1 << 20, 1024 << 20, 54 << 20
	d := &created{Fake: allocatortest.NewFake(device)}
	r := &rig{t: t, pool: newPool(t, d, allocator.PoolOptions{}), fake: d.Fake}
	r.Guard = allocatortest.NewGuard(r.pool, d.Fake)
	program, err := d.Malloc(others)
	r.must(err)
	for _, bytes := range []int64{device, device - others + 1} {
		if _, err := r.Alloc(bytes, 1, "too much"); err == nil {
			t.Fatalf("%d bytes were handed out", bytes)
		}
	}
	if d.most > 0 {
		t.Errorf("%d MiB were taken for requests that fail", d.most>>20)
	}
	b := r.alloc(device-others, 1)
	r.must(r.Free(b, 1))
	r.must(d.Free(program))
	r.close()
}

// addresses is a driver with as many addresses as a GPU.
type addresses struct {
	created
	left   int64
	ranges map[uintptr]int64
}

func (d *addresses) ReserveRange(bytes int64) (uintptr, error) {
	if bytes > d.left {
		return 0, noAddresses{}
	}
	addr, err := d.Fake.ReserveRange(bytes)
	if err == nil {
		d.left -= bytes
		d.ranges[addr] = bytes
	}
	return addr, err
}

func (d *addresses) ReleaseRange(addr uintptr, bytes int64) error {
	err := d.Fake.ReleaseRange(addr, bytes)
	if err == nil {
		d.left += bytes
	}
	return err
}

// TestAddressesOfFailedRequests searches for the largest possible block, from 64 TiB down. Failed
// requests must not leak addresses.
func TestAddressesOfFailedRequests(t *testing.T) {
	for _, blind := range []bool{false, true} {
		d := &addresses{created{Fake: allocatortest.NewFake(1 << 30), blind: blind}, 1 << 47, map[uintptr]int64{}}
		r := &rig{t: t, pool: newPool(t, d, allocator.PoolOptions{}), fake: d.Fake}
		r.Guard = allocatortest.NewGuard(r.pool, d.Fake)
		var blocks []allocator.Block
		for on := range allocator.Stream(20) {
			for bytes := int64(1 << 46); bytes >= 1<<40; bytes /= 2 {
				if _, err := r.Alloc(bytes, on, "too much"); err == nil {
					t.Fatalf("%d bytes were handed out", bytes)
				}
			}
			blocks = append(blocks, r.alloc(1<<20, on))
		}
		if used := int64(1<<47) - d.left; used > 20*(65<<30) {
			t.Errorf("blind=%v: %d GiB of addresses are reserved for 20 streams", blind, used>>30)
		}
		for on, b := range blocks {
			r.must(r.Free(b, allocator.Stream(on)))
		}
		r.close()
	}
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
