//go:build cgo

package nccl_test

import (
	"context"
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

	"mlpool/internal/must"
	"mlpool/kernels/nccl"
)

// libraries has the folders of the fake libnccl.so.2 that were built, by flags.
var libraries = map[string]string{}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, folder := range libraries {
		if err := os.RemoveAll(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// library builds the fake NCCL once for each set of flags, and returns its folder.
func library(t *testing.T, flags ...string) string {
	t.Helper()
	key := strings.Join(flags, " ")
	if folder := libraries[key]; folder != "" {
		return folder
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip(err)
	}
	folder, err := os.MkdirTemp("", "nccl")
	must.OK(t, err)
	libraries[key] = folder
	flags = append(slices.Clone(flags), "-std=c++17", "-DALONE", "-shared", "-fPIC", "-o", filepath.Join(folder, "libnccl.so.2"), "../emulator/nccl.cpp")
	if out, err := exec.Command("g++", flags...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// with runs a test again in a program of its own, with a fake NCCL in which wrong goes wrong, and
// reports whether this is that program.
func with(t *testing.T, wrong string, flags ...string) bool {
	t.Helper()
	const inChild = "NCCL_TEST_CHILD"
	if os.Getenv(inChild) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout", "5m", "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+library(t, flags...), inChild+"=1", "FAKE_NCCL="+wrong)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func newComm(within time.Duration) (*nccl.Comm, error) {
	return nccl.Connect(context.Background(), met{}, 1, 3, within)
}

// connected is rank 1 of 3.
func connected(t *testing.T) *nccl.Comm {
	t.Helper()
	c, err := newComm(time.Minute)
	must.OK(t, err)
	return c
}

// work is an all-reduce that the library of "slow" or "waits" is in.
type work struct {
	x     []float32
	ended chan error
}

func startWork(c *nccl.Comm) work {
	w := work{[]float32{1}, make(chan error, 1)}
	go func() { w.ended <- c.AllReduce(uintptr(unsafe.Pointer(&w.x[0])), 1, 0) }()
	const inside = -1 // as the fake has it
	for atomic.LoadUint32(w.bits()) != math.Float32bits(inside) {
		time.Sleep(time.Millisecond)
	}
	return w
}

func (w work) bits() *uint32 { return (*uint32)(unsafe.Pointer(&w.x[0])) }

// goOn lets slow work end.
func (w work) goOn() { atomic.StoreUint32(w.bits(), 0) }

// met are ranks that end when the test sends a reason.
type met struct{ end chan error }

func (met) Exchange(what string, mine []byte, decide func([][]byte) ([]byte, error)) ([]byte, error) {
	return decide([][]byte{mine, mine, mine})
}

func (met) End(error) error { return nil }

func (m met) OnEnd(f func(error)) (stop func()) {
	stopped, chosen := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case reason := <-m.end:
			close(chosen)
			f(reason)
		case <-stopped:
			close(chosen)
		}
	}()
	return func() { // afterwards a reason is for others
		close(stopped)
		<-chosen
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
