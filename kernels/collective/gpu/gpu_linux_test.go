//go:build cuda

package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
	"mlpool/kernels/collective/gpu"
	"mlpool/kernels/collective/launch"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

// asRank in the environment makes the test binary a rank. Its value is what the rank does.
const asRank = "GPU_TEST_AS_RANK"

const (
	exchanges = "exchanges"
	oneEnds   = "a rank ends when the others wait for it"
	oneFails  = "a rank fails and frees its memory when the others wait for it"
	apart     = "no rank reaches the memory of another"
	apartEnds = "no rank reaches the memory of another, and one ends when the others wait for it"
)

func TestMain(m *testing.M) {
	what := os.Getenv(asRank)
	if what == "" {
		os.Exit(m.Run())
	}
	if err := rank(what); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestExchange has processes exchange updates. Of real GPUs it takes one, and as many as there are, up to
// four.
func TestExchange(t *testing.T) {
	kerneltest.RequireGPU(t)
	sizes := []int{1, 2, 3, 4, 8, 16}
	if !kerneltest.Emulated() {
		gpus, err := filepath.Glob("/dev/nvidia[0-9]*")
		must.OK(t, err)
		sizes = slices.Compact([]int{1, max(1, min(4, len(gpus)))})
	}
	for _, size := range sizes {
		for _, what := range []string{exchanges, oneEnds, oneFails, apart, apartEnds} {
			if what != exchanges && (size == 1 || size > 4) {
				continue
			}
			t.Run(fmt.Sprint(size, " ", what), func(t *testing.T) { start(t, size, what) })
		}
	}
	if kerneltest.Emulated() {
		t.Run("3 exchanges without TMA", func(t *testing.T) {
			t.Setenv("EMULATOR_MAJOR", "8")
			start(t, 3, exchanges)
		})
	}
}

func start(t *testing.T, size int, what string) {
	without := "NCCL_P2P_DISABLE=1"
	if kerneltest.Emulated() {
		without = "EMULATOR_WITHOUT_PEERS=1"
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	must.OK(t, l.Close())
	var all sync.WaitGroup
	for rank := range size {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), asRank+"="+what, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank), fmt.Sprint("WORLD_SIZE=", size),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, launch.SecretEnv+"="+strings.Repeat("s", 32))
		if what == apart || what == apartEnds {
			cmd.Env = append(cmd.Env, without)
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		all.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("rank %d: %v\n%s", rank, err, &out)
			}
		})
	}
	all.Wait()
}

// rank does what its value of asRank says.
func rank(what string) (err error) {
	p, err := launch.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	if err := p.TakeGPU(); err != nil {
		return err
	}
	w, err := launch.Rendezvous(context.Background(), p, 10*time.Second)
	if err != nil {
		return err
	}
	c, err := gpu.Connect(context.Background(), w, w.Rank, w.Size, time.Minute)
	if err != nil {
		return err
	}
	stream, err := kernels.NewStream()
	if err != nil {
		return err
	}
	alloc, value := c.AllocSymmetric, ordered
	if what == apart || what == apartEnds {
		if _, _, err := c.AllocSymmetric(1 << 20); !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("%v, want %v", err, errors.ErrUnsupported)
		}
		alloc, value = own, whole
	}
	if what == oneEnds || what == oneFails || what == apartEnds {
		return endOne(c, w, stream, alloc, what == oneFails)
	}
	for _, floats := range []int{64 * 4321, 64 * 9, 64 * 9, 64} {
		for _, rounded := range []bool{false, true} {
			if err := exchange(c, stream, alloc, value, w.Size*floats, rounded); err != nil {
				return err
			}
		}
	}
	refused := func(why string, u collective.Updates) error {
		if err := c.Exchange(u, stream.Handle()); err == nil {
			return fmt.Errorf("no error of an exchange %s", why)
		}
		return nil
	}
	err = refused("that does not divide", collective.Updates{W: 4096, X: 8192, N: 64*w.Size + 32})
	if what == exchanges {
		n := 64 * w.Size
		at, free, failed := c.AllocSymmetric(4 * 2 * n)
		if failed != nil {
			return failed
		}
		x := at + uintptr(4*n)
		err = errors.Join(err,
			refused("of updates that are elsewhere", collective.Updates{W: at, X: 4096, N: n}),
			refused("of weights that are elsewhere", collective.Updates{W: 4096, X: x, N: n}),
			refused("of rounded weights that are elsewhere", collective.Updates{W: at, X: x, Rounded: 4096, N: n}),
			refused("beyond the memory", collective.Updates{W: at, X: x, N: 2 * n}),
			free(),
			refused("in memory that was freed", collective.Updates{W: at, X: x, N: n}))
	}
	err = errors.Join(err, stream.Close(), c.Close(), w.Leave(nil))
	if maps, _ := os.ReadFile("/proc/self/maps"); bytes.Contains(maps, []byte("emulated shared memory")) {
		err = errors.Join(err, errors.New("memory of a rank is still mapped after Close"))
	}
	return err
}

// allocation is AllocSymmetric, or another way to get memory.
type allocation func(bytes int) (addr uintptr, free func() error, err error)

// own allocates memory that is not symmetric.
func own(bytes int) (addr uintptr, free func() error, err error) {
	addr, _, err = kernels.NewIPC(int64(bytes))
	return addr, func() error { return kernels.FreeIPC(addr) }, err
}

// ordered is element i of what a rank adds in a round. Sums of these depend on their order.
func ordered(rank, i, round int) float32 { return float32(1+(i*7+round)%1000) / float32(3+rank) }

// whole is likewise one, whose sums do not.
func whole(rank, i, round int) float32 { return float32((i*7+round)%1000 - 100*rank) }

// exchange exchanges n updates a few times, twice by a graph. If rounded, each rank gets its part of the
// weights alone, and all of them in bf16.
func exchange(c *gpu.Comm, stream kernels.Stream, alloc allocation, value func(rank, i, round int) float32, n int, rounded bool) error {
	w, free, err := alloc((4*2 + 2) * n)
	if err != nil {
		return err
	}
	u, first, end := collective.Updates{W: w, X: w + uintptr(4*n), N: n}, 0, n
	if part := n / c.Size(); rounded {
		u.Rounded, first, end = w+uintptr(4*2*n), c.Rank()*part, (c.Rank()+1)*part
	}
	late := 5 * time.Millisecond // a rank comes after the others
	if what := os.Getenv(asRank); what == exchanges && n == 64*c.Size() {
		late = 100 * time.Millisecond
		// The numbers of the next exchanges wrap around. The all-reduce ends when all ranks have these flags.
		flags := slices.Repeat([]uint32{math.MaxUint32 - 1}, 2*kernels.MaxRanks+1)
		if err := errors.Join(stream.Upload(w-kernels.ExchangeFlags, raw(flags)), c.AllReduce(w, 1, stream.Handle()), stream.Synchronize()); err != nil {
			return err
		}
	}
	// NCCL may connect ranks at the first exchange. The memory is filled with zeros.
	if err := errors.Join(c.Exchange(u, stream.Handle()), stream.Synchronize(), stream.BeginCapture()); err != nil {
		return err
	}
	queued := c.Exchange(u, stream.Handle())
	graph, err := stream.EndCapture()
	if err = errors.Join(queued, err); err != nil {
		return err
	}
	updates, want := make([]float32, n), make([]float32, n)
	for round := range 4 {
		for i := range updates {
			updates[i] = value(c.Rank(), i, round)
			sum := value(0, i, round)
			for r := 1; r < c.Size(); r++ {
				sum += value(r, i, round)
			}
			want[i] += sum
		}
		if c.Rank() == round%c.Size() {
			time.Sleep(late)
		}
		if err := stream.Upload(u.X, raw(updates)); err != nil {
			return err
		}
		if round < 2 {
			err = graph.Launch(stream)
		} else {
			err = c.Exchange(u, stream.Handle())
		}
		got := make([]float32, n)
		if err := errors.Join(err, stream.Download(raw(got), w)); err != nil {
			return err
		}
		for i, v := range got {
			to := want[i]
			if i < first || i >= end {
				to = 0
			}
			if v != to {
				return fmt.Errorf("rank %d of %d, round %d: weight %d of %d is %v, want %v", c.Rank(), c.Size(), round, i, n, v, to)
			}
		}
		if !rounded {
			continue
		}
		inBF16 := make([]ref.BF16, n)
		if err := stream.Download(raw(inBF16), u.Rounded); err != nil {
			return err
		}
		for i, v := range inBF16 {
			if v != ref.ToBF16(want[i]) {
				return fmt.Errorf("rank %d of %d, round %d: weight %d of %d in bf16 is %v, want %v", c.Rank(), c.Size(), round, i, n, v.Float32(), want[i])
			}
		}
	}
	if rounded { // all ranks get all parts
		u.Rounded = 0
		got := make([]float32, n)
		if err := errors.Join(stream.Fill(u.X, 0, 4*n), c.Exchange(u, stream.Handle()), stream.Download(raw(got), w)); err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("rank %d of %d gathers other weights than it should", c.Rank(), c.Size())
		}
	}
	return errors.Join(graph.Close(), free())
}

// endOne ends the last rank, or the first of three, for which the others wait on their GPUs.
func endOne(c *gpu.Comm, w *launch.World, stream kernels.Stream, alloc allocation, fails bool) error {
	n := 64 * w.Size
	at, free, err := alloc(4 * 2 * n)
	if err != nil {
		return err
	}
	reason, ends := errors.New("this rank has had enough"), w.Size-1
	if w.Size == 3 {
		ends = 0
	}
	if w.Rank == ends {
		time.Sleep(100 * time.Millisecond)
		if fails {
			err = free()
			c.Abort(reason)
		}
		_ = w.Leave(reason) // it returns the reason
		return errors.Join(err, c.Close())
	}
	updates, got := slices.Repeat([]float32{1}, n), make([]float32, n)
	queued := errors.Join(stream.Upload(at+uintptr(4*n), raw(updates)), c.Exchange(collective.Updates{W: at, X: at + uintptr(4*n), N: n}, stream.Handle()))
	if err := errors.Join(queued, stream.Synchronize()); err != nil && !strings.Contains(err.Error(), reason.Error()) {
		return err
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), reason.Error()) {
		return fmt.Errorf("an exchange ends without a rank, and its error is %v, want %v", err, reason)
	}
	if os.Getenv(asRank) != apartEnds { // where NCCL's part is queued apart from the weights'
		if err := stream.Download(raw(got), at); err != nil || slices.Max(got) != 0 {
			return fmt.Errorf("an exchange that ends without a rank changes weights to %v, %v", slices.Max(got), err)
		}
	}
	return errors.Join(free(), c.Close())
}

func raw[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}
