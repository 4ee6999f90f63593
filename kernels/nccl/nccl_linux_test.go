//go:build cgo

package nccl_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"mlpool/internal/must"
	"mlpool/kernels/nccl"
)

func TestCollectives(t *testing.T) {
	if !with(t, "") {
		return
	}
	c := connected(t)
	x := []float32{1, 2, 3}
	if err := c.AllReduce(uintptr(unsafe.Pointer(&x[0])), len(x), 0); err != nil || !slices.Equal(x, []float32{3, 6, 9}) {
		t.Errorf("%v, %v", x, err)
	}
	x = []float32{1, 2, 3, 4, 5, 6} // parts of two
	if err := c.ReduceScatter(uintptr(unsafe.Pointer(&x[0])), 2, 0); err != nil || !slices.Equal(x[2:4], []float32{9, 12}) {
		t.Errorf("%v, %v", x, err)
	}
	if err := c.AllGather(uintptr(unsafe.Pointer(&x[0])), 2*4, 0); err != nil || !slices.Equal(x, []float32{9, 12, 9, 12, 9, 12}) {
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
	must.OK(t, c.Close())
}

func TestRegister(t *testing.T) {
	if !with(t, "", "-DREGISTERS") {
		return
	}
	c := connected(t)
	addr, err := nccl.Alloc(4096)
	must.OK(t, err)
	for _, register := range []func(uintptr, int64) (func() error, error){c.Register, c.RegisterWindow} {
		deregister, err := register(addr, 4096)
		if err == nil {
			err = deregister()
		}
		if err != nil {
			t.Error(err)
		}
	}
	must.OK(t, nccl.Free(addr), c.Close())
}

// TestNoWindow has GPUs that do not reach each other's memory, between which there is no window.
func TestNoWindow(t *testing.T) {
	for _, wrong := range []string{"windowless", "registered"} { // 2.28 registers the memory then
		t.Run(wrong, func(t *testing.T) {
			if !with(t, wrong, "-DREGISTERS") {
				return
			}
			c := connected(t)
			if _, err := c.RegisterWindow(1<<20, 4096); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "between these GPUs") {
				t.Errorf("%v, want errors.ErrUnsupported", err)
			}
			must.OK(t, c.Close())
		})
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ wrong, want string }{
		{"old", "libnccl.so.2 is NCCL 2.17.5: install NCCL 2.18.0 or later"},
		{"duplicate", "nccl: Connect: Duplicate GPU detected (NCCL error 5)"},
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

func TestHosts(t *testing.T) {
	if !with(t, "") {
		return
	}
	for ranks, want := range map[nccl.Ranks]bool{met{}: false, apart{}: true} {
		c, err := nccl.Connect(context.Background(), ranks, 1, 3, time.Minute)
		must.OK(t, err)
		if got := c.AcrossHosts(); got != want {
			t.Errorf("%T: on several hosts %v, want %v", ranks, got, want)
		}
		must.OK(t, c.Close())
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
		must.OK(t, os.WriteFile(filepath.Join(folder, "libnccl.so.2"), nil, 0o644))
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
