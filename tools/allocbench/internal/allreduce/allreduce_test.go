package allreduce

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels/collective/launch"
	"mlpool/tools/allocbench/internal/bench"
)

// TestAllReduces measures on two ranks with scripted times. Both leave out the source that
// rank 1 does not support.
func TestAllReduces(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	address := l.Addr().String()
	must.OK(t, l.Close())
	var rows [2][]bench.Row
	var said [2][]string
	var errs [2]error
	open := make([]int, 2)
	var all sync.WaitGroup
	for rank := range 2 {
		all.Go(func() {
			world, err := launch.Rendezvous(context.Background(), launch.Process{Rank: rank, Size: 2, Address: address, Within: 20 * time.Second}, launch.Silence)
			if err != nil {
				errs[rank] = err
				return
			}
			get := func(refused bool) func(int64) (uintptr, func() error, error) {
				return func(bytes int64) (uintptr, func() error, error) {
					if refused {
						return 0, nil, errors.New("unsupported")
					}
					open[rank]++
					return uintptr(bytes), func() error { open[rank]--; return nil }, nil
				}
			}
			r := group{Process: world.Process, exchange: world.Exchange, sources: []source{{"one", get(false)}, {"two", get(rank == 1)}}}
			r.times = func(addr uintptr, floats, n int) (time.Duration, error) {
				if int(addr) != 4*floats {
					return 0, errors.New("not the memory that was asked for")
				}
				return time.Duration(n*floats) * time.Microsecond, nil
			}
			rows[rank], err = r.allReduces(context.Background(), []int64{4, 4 * bench.KiB}, 3, true, func(why string) { said[rank] = append(said[rank], why) })
			errs[rank] = world.Leave(err)
		})
	}
	all.Wait()
	must.OK(t, errs[:]...)
	if len(rows[1]) != 0 || len(rows[0]) != 2 || rows[0][0].Mean != 1e3 || rows[0][1].Mean != 1024e3 || rows[0][1].Case != "4 KiB" || rows[0][1].Runs != 3 {
		t.Errorf("rows %+v", rows)
	}
	if want := []string{"two: rank 1: unsupported"}; !slices.Equal(said[0], want) || !slices.Equal(said[1], want) || open[0]+open[1] != 0 {
		t.Errorf("said %q, %v blocks are left", said, open)
	}
}

// TestRegistering: a pool registers each segment once.
func TestRegistering(t *testing.T) {
	d := bench.NewNull()
	calls, live := 0, 0
	r := &registering{Driver: d, register: func(uintptr, int64) (func() error, error) {
		calls++
		live++
		return func() error { live--; return nil }, nil
	}}
	pool, err := allocator.NewPool(r, allocator.PoolOptions{Segments: allocator.SegmentsMalloc})
	must.OK(t, err)
	for range 100 {
		b, err := pool.Alloc(1000, 0, "x")
		if err == nil {
			err = pool.Free(b, 0)
		}
		must.OK(t, err)
	}
	if calls != 1 || live != 1 {
		t.Errorf("%d registrations, %d live", calls, live)
	}
	if err := errors.Join(pool.Close(), d.Close()); err != nil || live != 0 {
		t.Errorf("%v, %d registrations are left", err, live)
	}
	refuses := &registering{Driver: bench.NewNull(), register: func(uintptr, int64) (func() error, error) { return nil, errors.New("refused") }}
	if _, err := refuses.Malloc(bench.MiB); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}
