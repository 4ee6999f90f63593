package allreduce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"mlpool/internal/stats"
	"mlpool/kernels"
	"mlpool/kernels/collective/launch"
	"mlpool/kernels/nccl"
	"mlpool/tools/allocbench/internal/bench"
)

// Name is a scenario of its own: it takes several processes, and compares sources of
// memory rather than allocators.
const (
	Name = "allreduce"
	unit = "all-reduce"
	Doc  = "an all-reduce over several GPUs, by where its memory comes from"
)

// group is a rank's part in timed all-reduces.
type group struct {
	launch.Process
	// exchange is Exchange of a launch.World.
	exchange func(what string, mine []byte, decide func(all [][]byte) ([]byte, error)) ([]byte, error)
	// times does n all-reduces one after the other, and returns the device's time for all of
	// them.
	times   func(addr uintptr, floats, n int) (time.Duration, error)
	sources []source
}

// allReduceSizes are the sizes of one number, of the gradients of the README's models, and
// powers of two.
var allReduceSizes = []int64{4, 4 * bench.KiB, 64 * bench.KiB, 256 * bench.KiB, bench.MiB, 4 * bench.MiB, 9_899_008, 16 * bench.MiB, 64 * bench.MiB, 256 * bench.MiB}

// allReduces measures every source at every size, the sources in turn, and returns rows on
// rank 0, each the median of the runs. Sources that some rank does not support have no rows;
// warn says why.
func (r group) allReduces(ctx context.Context, sizes []int64, runs int, quick bool, warn func(string)) (rows []bench.Row, err error) {
	out := map[string]bool{} // unsupported sources
	for _, bytes := range sizes {
		found := make([][]float64, len(r.sources))
		n := 2 * int(max(10, min(500, (256*bench.MiB)/bytes)))
		if quick {
			n = 2
		}
		for range runs {
			for i, s := range r.sources {
				if out[s.name] {
					continue
				}
				if err := r.agreed("interruption", ctx.Err()); err != nil {
					return rows, errors.Join(err, ctx.Err())
				}
				addr, done, err := s.open(bytes)
				if refused := r.agreed("memory of "+s.name, err); refused != nil {
					out[s.name] = true
					warn(fmt.Sprintf("%s: %v", s.name, refused))
					if err == nil {
						if err := done(); err != nil {
							return rows, err
						}
					}
					continue
				}
				_, first := r.times(addr, int(bytes/4), max(n/10, 1)) // connects, and warms up
				took, err := r.times(addr, int(bytes/4), n)
				if err := r.agreed("all-reduce", errors.Join(first, err, done())); err != nil {
					return rows, err
				}
				found[i] = append(found[i], float64(took)/float64(n))
			}
		}
		for i, s := range r.sources {
			if len(found[i]) == 0 || r.Rank != 0 {
				continue
			}
			middle := stats.Median(found[i])
			rows = append(rows, bench.Row{
				Scenario: Name, Case: bench.SizeName(bytes), Allocator: s.name, Unit: unit, Ops: int64(n), Runs: len(found[i]),
				Mean: middle, Least: slices.Min(found[i]), Most: slices.Max(found[i]), P50: math.NaN(), P99: math.NaN(), P999: math.NaN(), PerSecond: 1e9 / middle, PeakLive: bytes,
				DriverCalls: math.NaN(), GoAllocs: math.NaN(), HostWaits: math.NaN(), Ranks: int64(r.Size),
			})
		}
	}
	return rows, nil
}

// agreed returns the first error of any rank, or nil.
func (r group) agreed(what string, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	answer, failed := r.exchange(what, []byte(text), func(all [][]byte) ([]byte, error) {
		for rank, text := range all {
			if len(text) > 0 {
				return json.Marshal(fmt.Sprintf("rank %d: %s", rank, text))
			}
		}
		return json.Marshal("")
	})
	if failed != nil {
		return failed
	}
	if err := json.Unmarshal(answer, &text); err != nil || text == "" {
		return err
	}
	return errors.New(text)
}

// RankFromEnv returns this process's rank, and makes its GPU the only visible one.
func RankFromEnv() (launch.Process, error) {
	process, err := launch.FromEnv(os.Getenv)
	if err != nil {
		return process, err
	}
	if process.Size == 1 {
		return process, fmt.Errorf("scenario %s is of several GPUs: mpirun -np 2 allocbench -scenario %s", Name, Name)
	}
	return process, process.TakeGPU()
}

// A Job is what the ranks measure together.
type Job struct {
	Process launch.Process
	Sources string // with commas between them; empty: all
	Sizes   string // those whose name contains it
	Runs    int
	Quick   bool
}

// Measure measures as one of the ranks. Rank 0 has the rows, and prints what is measured and what is not
// supported.
func (j Job) Measure(ctx context.Context, printf func(format string, args ...any)) (rows []bench.Row, err error) {
	world, err := launch.Rendezvous(ctx, j.Process, launch.Silence)
	if err != nil {
		return nil, err
	}
	if warning := world.Warning(); warning != "" && world.Rank == 0 {
		fmt.Fprintf(os.Stderr, "allocbench: %s\n", warning)
	}
	rows, err = j.measureIn(ctx, world, printf)
	return rows, world.Leave(err)
}

// measureIn measures all sources together with the other ranks of world.
func (j Job) measureIn(ctx context.Context, world *launch.World, printf func(format string, args ...any)) (rows []bench.Row, err error) {
	if err := kernels.Available(); err != nil {
		return nil, err
	}
	comm, err := nccl.Connect(ctx, world, world.Rank, world.Size, world.Within)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, comm.Close()) }()
	stream, err := kernels.NewStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	var marks [2]kernels.Event
	for i := range marks {
		if marks[i], err = kernels.NewEvent(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, marks[i].Close()) }()
	}
	r := group{
		Process: world.Process, exchange: world.Exchange,
		times: allReduceTimer(comm, stream, marks), sources: sources(comm, stream.Handle()),
	}
	if r.sources, err = bench.Choose("allocator", j.Sources, r.sources, func(s source) string { return s.name }); err != nil {
		return nil, err
	}
	sizes := slices.DeleteFunc(slices.Clone(allReduceSizes), func(bytes int64) bool { return !strings.Contains(bench.SizeName(bytes), j.Sizes) })
	version, err := nccl.Version()
	if err != nil {
		return nil, err
	}
	if world.Rank != 0 {
		printf = func(string, ...any) {}
	}
	printf("%d ranks, NCCL %s\n\n%s: %s\n%-10s %-28s %10s %14s %11s\n", world.Size, nccl.VersionName(version),
		Name, Doc, "", "memory", "mean", "spread", "algbw, GB/s")
	return r.allReduces(ctx, sizes, j.Runs, j.Quick, func(why string) { printf("%s\n", why) })
}

// allReduceTimer returns times of a group.
func allReduceTimer(comm *nccl.Comm, stream kernels.Stream, marks [2]kernels.Event) func(addr uintptr, floats, n int) (time.Duration, error) {
	return func(addr uintptr, floats, n int) (time.Duration, error) {
		if err := errors.Join(stream.Fill(addr, 0, 4*floats), marks[0].Record(stream)); err != nil {
			return 0, err
		}
		for range n {
			if err := comm.AllReduce(addr, floats, stream.Handle()); err != nil {
				return 0, err
			}
		}
		if err := errors.Join(marks[1].Record(stream), stream.Synchronize(), comm.Err()); err != nil {
			return 0, err
		}
		return marks[1].Since(marks[0])
	}
}
