//go:build cgo

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"mlpool/kernels/nccl"
)

// with runs a test of this program again, with a libnccl.so.2 of the test's where wrong
// goes wrong, and says whether this is that program.
func with(t *testing.T, wrong string, flags ...string) bool {
	t.Helper()
	const inChild = "NCCL_TEST_CHILD"
	if os.Getenv(inChild) != "" {
		return true
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	folder := t.TempDir()
	flags = append(flags, "-shared", "-fPIC", "-o", filepath.Join(folder, "libnccl.so.2"), "testdata/fakenccl.c")
	if out, err := exec.Command("gcc", flags...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout", "5m", "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+folder, inChild+"=1", "FAKE_NCCL="+wrong)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func newComm(within time.Duration) (*nccl.Comm, error) {
	id, err := nccl.NewID()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return nccl.New(ctx, id, 1, 3)
}

// connected is rank 1 of 3.
func connected(t *testing.T) *nccl.Comm {
	t.Helper()
	c, err := newComm(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAllReduce(t *testing.T) {
	if !with(t, "") {
		return
	}
	c := connected(t)
	x := []float32{1, 2, 3}
	if err := c.AllReduce(uintptr(unsafe.Pointer(&x[0])), len(x), 0); err != nil || !slices.Equal(x, []float32{3, 6, 9}) {
		t.Errorf("%v, %v", x, err)
	}
	if c.Rank() != 1 || c.Size() != 3 || c.Err() != nil {
		t.Errorf("rank %d of %d, %v", c.Rank(), c.Size(), c.Err())
	}
	_, registers := c.Register(1<<20, 1)
	_, windows := c.RegisterWindow(1<<20, 1)
	_, allocates := nccl.Alloc(1)
	for _, err := range []error{registers, windows, allocates, nccl.Free(1 << 20)} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "2.27.3") {
			t.Errorf("%v, want errors.ErrUnsupported", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestRegister(t *testing.T) {
	if !with(t, "", "-DREGISTERS") {
		return
	}
	c := connected(t)
	addr, err := nccl.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, register := range []func(uintptr, int64) (func() error, error){c.Register, c.RegisterWindow} {
		deregister, err := register(addr, 4096)
		if err == nil {
			err = deregister()
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(nccl.Free(addr), c.Close()); err != nil {
		t.Error(err)
	}
}

func TestAllGather(t *testing.T) {
	if !with(t, "", "-DREGISTERS", "-DCOPY_ENGINES") {
		return
	}
	c := connected(t)
	addr, free, err := c.AllocSymmetric(4 * 6)
	if err != nil {
		t.Fatal(err)
	}
	x := unsafe.Slice((*float32)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), 6)
	copy(x, []float32{1, 2, 3, 4, 5, 6})
	if err := c.AllGather(addr, 2, 0); err != nil || !slices.Equal(x, []float32{3, 4, 3, 4, 3, 4}) {
		t.Errorf("%v, %v", x, err)
	}
	if err := errors.Join(free(), c.Close()); err != nil {
		t.Error(err)
	}
}

// TestNoSymmetricMemory has an NCCL that is too old for all-gathers by copy engines, and GPUs
// that do not reach each other's memory.
func TestNoSymmetricMemory(t *testing.T) {
	for _, c := range []struct {
		wrong, flag, want string
	}{
		{"", "-DREGISTERS", "unsupported operation by NCCL 2.27.3"},
		{"windowless", "-DCOPY_ENGINES", "unsupported operation between these GPUs"},
		{"registered", "-DCOPY_ENGINES", "unsupported operation between these GPUs"}, // as 2.28 does then
	} {
		t.Run(c.wrong+c.want, func(t *testing.T) {
			if !with(t, c.wrong, "-DREGISTERS", c.flag) {
				return
			}
			comm := connected(t)
			if _, _, err := comm.AllocSymmetric(1 << 20); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := comm.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGoneWithMemory frees symmetric memory of a communicator that another rank has ended:
// copies may still be under way, so it is left to the end of the process.
func TestGoneWithMemory(t *testing.T) {
	if !with(t, "", "-DREGISTERS", "-DCOPY_ENGINES") {
		return
	}
	c := connected(t)
	addr, free, err := c.AllocSymmetric(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("rank 2 is gone")
	c.Abort(gone)
	if err := c.AllGather(addr, 1, 0); err != gone {
		t.Errorf("%v, want %v", err, gone)
	}
	if _, _, err := c.AllocSymmetric(1 << 20); !errors.Is(err, gone) {
		t.Errorf("%v, want %v", err, gone)
	}
	if err := errors.Join(free(), c.Close()); err != nil {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ wrong, want string }{
		{"old", "libnccl.so.2 is NCCL 2.17.5: install NCCL 2.18.0 or later"},
		{"duplicate", "nccl: New: Duplicate GPU detected (NCCL error 5)"},
		{"never", "rank 1 of 3 still waits for the others"},
		{"refuses", "nccl: AllReduce: invalid usage (NCCL error 5)"},
		{"fails", "nccl: asynchronous error: unhandled system error (NCCL error 2)"},
	} {
		t.Run(c.wrong, func(t *testing.T) {
			if !with(t, c.wrong) {
				return
			}
			within := time.Minute
			if c.wrong == "never" {
				within = 100 * time.Millisecond
			}
			comm, err := newComm(within)
			if err == nil {
				for err == nil {
					x := []float32{1}
					err = comm.AllReduce(uintptr(unsafe.Pointer(&x[0])), 1, 0)
				}
				err = errors.Join(err, comm.Close())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAbort(t *testing.T) {
	if !with(t, "") {
		return
	}
	c := connected(t)
	gone := errors.New("rank 2 is gone")
	c.Abort(gone)
	c.Abort(errors.New("another reason"))
	if err := c.AllReduce(0, 0, 0); err != gone || c.Err() != gone {
		t.Errorf("%v and %v, want %v", err, c.Err(), gone)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// work is an all-reduce that the library of "slow" or "waits" is in.
type work struct {
	x     []float32
	ended chan error
}

func startWork(c *nccl.Comm) work {
	w := work{[]float32{1}, make(chan error, 1)}
	go func() { w.ended <- c.AllReduce(uintptr(unsafe.Pointer(&w.x[0])), 1, 0) }()
	const inside = -1 // as fakenccl.c has it
	for atomic.LoadUint32(w.bits()) != math.Float32bits(inside) {
		time.Sleep(time.Millisecond)
	}
	return w
}

func (w work) bits() *uint32 { return (*uint32)(unsafe.Pointer(&w.x[0])) }

// goOn lets slow work come to its end.
func (w work) goOn() { atomic.StoreUint32(w.bits(), 0) }

// TestAbortBesideWork has a communicator end while an all-reduce is queued, which may take
// its time, or wait for the GPU until the end. NCCL frees what it aborts.
func TestAbortBesideWork(t *testing.T) {
	for _, how := range []string{"slow", "waits"} {
		t.Run(how, func(t *testing.T) {
			if !with(t, how) {
				return
			}
			if how == "slow" {
				nccl.SetAbortAfter(time.Hour)
			}
			c := connected(t)
			work := startWork(c)
			gone := errors.New("rank 2 is gone")
			aborted := make(chan struct{})
			go func() {
				c.Abort(gone)
				close(aborted)
			}()
			for c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			work.goOn()
			if err := <-work.ended; err != gone {
				t.Errorf("%v, want %v", err, gone)
			}
			<-aborted
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCloseAlone parts from ranks that are gone without a word, which NCCL waits for.
func TestCloseAlone(t *testing.T) {
	if !with(t, "alone") {
		return
	}
	nccl.SetCloseWithin(100 * time.Millisecond)
	if err := connected(t).Close(); err != nil {
		t.Error(err)
	}
}

// TestGone uses a communicator that is aborted, or closed.
func TestGone(t *testing.T) {
	if !with(t, "", "-DREGISTERS") {
		return
	}
	for _, end := range []func(*nccl.Comm) error{
		func(c *nccl.Comm) error { c.Abort(errors.New("rank 2 is gone")); return nil },
		(*nccl.Comm).Close,
	} {
		c := connected(t)
		deregister, errR := c.Register(1<<20, 4096)
		closeWindow, errW := c.RegisterWindow(1<<21, 4096)
		if err := errors.Join(errR, errW, end(c)); err != nil {
			t.Fatal(err)
		}
		_, errR = c.Register(1<<20, 4096)
		_, errW = c.RegisterWindow(1<<20, 4096)
		for _, err := range []error{errR, errW, deregister(), closeWindow(), c.AllReduce(0, 0, 0)} {
			if err == nil {
				t.Error("it works without an error")
			}
		}
	}
}

// met are ranks that end when the test has them.
type met struct{ end chan error }

func (met) Exchange(what string, mine []byte, decide func([][]byte) ([]byte, error)) ([]byte, error) {
	return decide([][]byte{mine, mine, mine})
}

func (met) End(error) error { return nil }

func (m met) OnEnd(f func(error)) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case reason := <-m.end:
			f(reason)
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

// TestConnect has the ranks end while they connect, and after.
func TestConnect(t *testing.T) {
	gone := errors.New("rank 2 is gone")
	for _, c := range []struct {
		how, want string
		within    time.Duration
		ends      bool
	}{
		{"never", "NCCL_DEBUG=INFO says more", 100 * time.Millisecond, false},
		{"never", gone.Error(), time.Minute, true},
		{"waits", gone.Error(), time.Minute, false},
	} {
		t.Run(fmt.Sprint(c.how, c.ends), func(t *testing.T) {
			if !with(t, c.how) {
				return
			}
			ranks := met{make(chan error, 1)}
			if c.ends {
				ranks.end <- gone
			}
			comm, err := nccl.Connect(context.Background(), ranks, 1, 3, c.within)
			if err == nil {
				work := startWork(comm)
				ranks.end <- gone
				err = errors.Join(<-work.ended, comm.Close())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// ending are ranks that note who ends them.
type ending struct {
	met
	reasons chan error
}

func (e ending) End(reason error) error { e.reasons <- reason; return nil }

// apart are ranks of which one is on another host.
type apart struct{ met }

func (apart) Exchange(what string, mine []byte, decide func([][]byte) ([]byte, error)) ([]byte, error) {
	return decide([][]byte{mine, mine, []byte("elsewhere")})
}

// TestHosts asks for memory for copy engines, which reach no other host.
func TestHosts(t *testing.T) {
	if !with(t, "", "-DREGISTERS", "-DCOPY_ENGINES") {
		return
	}
	for ranks, want := range map[nccl.Ranks]error{met{}: nil, apart{}: errors.ErrUnsupported} {
		c, err := nccl.Connect(context.Background(), ranks, 1, 3, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		_, free, err := c.AllocSymmetric(4096)
		if !errors.Is(err, want) {
			t.Errorf("%T: %v, want %v", ranks, err, want)
		}
		if err == nil {
			err = free()
		}
		if err := errors.Join(err, c.Close()); !errors.Is(err, want) {
			t.Error(err)
		}
	}
}

// TestEndsAll has NCCL find an error while this rank waits for copy engines, say: all ranks
// are told, also where NCCL cannot abort the communicator yet.
func TestEndsAll(t *testing.T) {
	for _, how := range []string{"fails", "stuck"} {
		t.Run(how, func(t *testing.T) {
			if !with(t, how) {
				return
			}
			ranks := ending{reasons: make(chan error, 1)}
			c, err := nccl.Connect(context.Background(), ranks, 1, 3, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			reason := <-ranks.reasons
			if want := "nccl: asynchronous error: unhandled system error (NCCL error 2)"; reason.Error() != want {
				t.Errorf("%v, want %s", reason, want)
			}
			if how == "stuck" {
				return // and so would be Close
			}
			if err := c.Close(); err != nil || c.Err() == nil {
				t.Errorf("%v, the communicator ended with %v", err, c.Err())
			}
		})
	}
}

func TestVersionName(t *testing.T) {
	for v, want := range map[int]string{2400: "2.4.0", 2804: "2.8.4", 20902: "2.9.2", 21803: "2.18.3", 22809: "2.28.9"} {
		if got := nccl.VersionName(v); got != want {
			t.Errorf("%d: %s, want %s", v, got, want)
		}
	}
}

// TestNoLibrary finds a libnccl.so.2 that cannot be loaded.
func TestNoLibrary(t *testing.T) {
	if os.Getenv("NCCL_TEST_NONE") == "" {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "libnccl.so.2"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestNoLibrary$")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+folder, "NCCL_TEST_NONE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	_, err := nccl.Version()
	if err == nil || !strings.Contains(err.Error(), "libnccl.so.2") || !strings.Contains(err.Error(), "install NCCL 2.18.0 or later") {
		t.Error(err)
	}
	if _, err := newComm(time.Second); err == nil {
		t.Error("a communicator without NCCL")
	}
}
