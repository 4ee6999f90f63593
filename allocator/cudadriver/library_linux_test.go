//go:build cgo

package cudadriver_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels/kerneltest"
)

// withLibrary runs tests again with libcuda.so.1 from folder, and returns what they print.
func withLibrary(t *testing.T, folder string, tests ...string) string {
	t.Helper()
	if kerneltest.Emulated() {
		t.Skip("the emulated driver comes before every library")
	}
	return again(t, "LD_LIBRARY_PATH="+folder, tests...)
}

// oldDriver compiles a driver and returns its folder.
func oldDriver(t *testing.T, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	folder := t.TempDir()
	flags = append(flags, "-shared", "-fPIC", "-o", filepath.Join(folder, "libcuda.so.1"), "testdata/olddriver.c")
	build := exec.Command("gcc", flags...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// runThread compiles testdata/thread.c and runs it, with libcuda.so.1 from folder unless that is empty.
func runThread(t *testing.T, folder string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "thread")
	sources := []string{"testdata/thread.c", "context.c", "driver.c"}
	build := exec.Command("gcc", append(sources, "-I.", "-o", program, "-ldl", "-lpthread")...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command(program)
	if folder != "" {
		run.Env = append(os.Environ(), "LD_LIBRARY_PATH="+folder)
	}
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestThread checks that a call leaves its thread the context and the capture mode, that no call for
// memory invalidates a capture, and that a child of fork gets an error.
func TestThread(t *testing.T) {
	runThread(t, oldDriver(t, "-DNEWER"))
}

func TestThreadOnGPU(t *testing.T) {
	requireDevice(t)
	if kerneltest.Emulated() {
		t.Skip("the program has no emulated driver")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	runThread(t, "")
}

// TestNewRefused asks for what a driver without peers, whose pages cannot be exported, does not have.
func TestNewRefused(t *testing.T) {
	if os.Getenv(inChild) == "" {
		withLibrary(t, oldDriver(t, "-DNEWER"), "TestNewRefused")
		return
	}
	d, err := cudadriver.New(cudadriver.Options{Device: 1, Peers: []int{1}}) // it is no peer of its own
	try(t, err)
	if n, err := cudadriver.DeviceCount(); n != 2 || err != nil {
		t.Errorf("%d devices, %v, want 2", n, err)
	}
	if d == (cudadriver.Driver{}) {
		t.Error("device 1 is the zero Driver")
	}
	for name, c := range map[string]struct {
		o           cudadriver.Options
		unsupported bool
	}{
		"device -1":       {cudadriver.Options{Device: -1}, false},
		"device 2":        {cudadriver.Options{Device: 2}, false},
		"a peer -1":       {cudadriver.Options{Peers: []int{-1}}, false},
		"a peer 2":        {cudadriver.Options{Peers: []int{2}}, false},
		"no peer access":  {cudadriver.Options{Peers: []int{0, 1}}, false},
		"shareable pages": {cudadriver.Options{Shareable: true}, true},
	} {
		d, err := cudadriver.New(c.o)
		if err == nil || errors.Is(err, errors.ErrUnsupported) != c.unsupported || d != (cudadriver.Driver{}) {
			t.Errorf("%s: %+v, error %v", name, d, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: an error of several lines: %v", name, err)
		}
	}
	_, err = cudadriver.NewMemPoolWith(cudadriver.MemPoolOptions{Device: 2})
	_, graph := cudadriver.NewGraphPool(2)
	if err == nil || graph == nil {
		t.Errorf("pools of a device that does not exist: %v, %v", err, graph)
	}
}

// TestOtherContext runs where another library gave every thread a context. Memory is of
// the primary context, and the other one is restored.
func TestOtherContext(t *testing.T) {
	t.Setenv("OTHER_CONTEXT", "1")
	withLibrary(t, oldDriver(t), "TestMalloc", "TestAlone")
}

// TestPoolsWithoutGraphs runs on a driver whose graphs have no memory, so that there can be
// no GraphPool.
func TestPoolsWithoutGraphs(t *testing.T) {
	if os.Getenv(inChild) == "" {
		withLibrary(t, oldDriver(t, "-DNEWER"), "TestPoolsWithoutGraphs")
		return
	}
	p, err := cudadriver.NewMemPool()
	try(t, err)
	try(t, p.ClosePool())
	if p, err := cudadriver.NewGraphPool(0); !errors.Is(err, errors.ErrUnsupported) || p != (cudadriver.GraphPool{}) {
		t.Errorf("NewGraphPool: %+v, %v, want errors.ErrUnsupported", p, err)
	}
}

// TestRefused makes a driver refuse the last of several calls: the earlier ones are undone,
// and the error is the refused call's.
func TestRefused(t *testing.T) {
	if os.Getenv(inChild) == "" {
		withLibrary(t, oldDriver(t, "-DNEWER"), "TestRefused")
		return
	}
	const unknown = 999
	var d cudadriver.Driver
	refuse := func(call string) { try(t, os.Setenv("REFUSE", call)) }
	available := func() int64 {
		free, _, err := d.MemInfo()
		try(t, err)
		return free
	}
	before := available()
	options := map[string]cudadriver.MemPoolOptions{
		"threshold":             {ReleaseThreshold: 1},
		"follow events":         {FollowEvents: true},
		"opportunistic":         {Opportunistic: true},
		"internal dependencies": {InternalDependencies: true},
	}
	for refused := range options {
		refuse(refused)
		for name, o := range options {
			p, err := cudadriver.NewMemPoolWith(o)
			if name == refused {
				want(t, "a pool with "+name+" refused", err, unknown)
			} else {
				try(t, errors.Join(err, p.ClosePool()))
			}
			if got := available(); got != before {
				t.Fatalf("%s with %s refused: %d bytes are left over", name, refused, before-got)
			}
		}
	}

	const page, addr = 2 << 20, 4 << 20
	refuse("access")
	want(t, "MapPages without access", d.MapPages(addr, 1, page), unknown)
	refuse("")
	try(t, d.MapPages(addr, 1, page))
	try(t, d.UnmapPages(addr, page))

	e, err := d.NewEvent()
	try(t, err)
	for _, c := range []struct {
		refused string
		done    bool
	}{{"event query", false}, {"", true}} {
		refuse(c.refused)
		done, err := d.QueryEvent(e)
		if try(t, err); done != c.done {
			t.Errorf("the event is done: %v, want %v", done, c.done)
		}
	}
	try(t, d.FreeEvent(e))
}

// TestDeviceWithoutPages runs on a driver that can map pages, with a device that cannot.
func TestDeviceWithoutPages(t *testing.T) {
	if os.Getenv(inChild) == "" {
		t.Setenv("REFUSE", "pages")
		withLibrary(t, oldDriver(t, "-DNEWER"), "TestDeviceWithoutPages", "TestAlone")
		return
	}
	var d cudadriver.Driver
	_, size := d.PageSize()
	for name, err := range map[string]error{"PageSize": size, "MapPages": d.MapPages(2<<20, 1, 2<<20)} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, want errors.ErrUnsupported", name, err)
		}
	}
}

// TestOldDriver runs on a driver without pages and pools. Everything else works.
func TestOldDriver(t *testing.T) {
	if os.Getenv(inChild) == "" {
		withLibrary(t, oldDriver(t), "TestOldDriver", "TestMalloc", "TestAlone")
		return
	}
	var d cudadriver.Driver
	for name, call := range map[string]func() error{
		"PageSize":     func() error { _, err := d.PageSize(); return err },
		"ReserveRange": func() error { _, err := d.ReserveRange(2 << 20); return err },
		"CreatePages":  func() error { _, err := d.CreatePages(2 << 20); return err },
		"MapPages":     func() error { return d.MapPages(2<<20, 1, 2<<20) },
		"NewMemPool":   func() error { _, err := cudadriver.NewMemPool(); return err },
		"NewGraphPool": func() error { _, err := cudadriver.NewGraphPool(0); return err },
		"PoolReserved": func() error { _, _, err := cudadriver.GraphPool{}.PoolReserved(); return err },
	} {
		onNewThread(t, name, func() error {
			if err := call(); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, cudadriver.ErrNoCUDA) {
				t.Errorf("%s: %v, want errors.ErrUnsupported", name, err)
			}
			return nil
		})
	}
	if _, err := d.MallocHost(1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("MallocHost: %v, want errors.ErrUnsupported", err)
	}
	onNewThread(t, "MemInfo", func() error { _, _, err := d.MemInfo(); return err })
	_, err := d.Malloc(2 << 30)
	want(t, "Malloc of more than the device has", err, 2)
	// It has no names of errors either.
	if got := err.Error(); got != "cudadriver: Malloc: unknown error (CUDA error 2)" {
		t.Errorf("%q", got)
	}
}

// TestBrokenLibrary finds a libcuda.so.1 that cannot be loaded.
func TestBrokenLibrary(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "libcuda.so.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out := withLibrary(t, folder, "TestWithoutDevice")
	if want := "no CUDA device can be used: cudadriver: Available: no CUDA driver: "; !strings.Contains(out, want) {
		t.Errorf("%s\nwant %q", out, want)
	}
}
