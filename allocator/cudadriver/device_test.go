package cudadriver_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// inChild is in the environment of programs that a test starts.
const inChild = "CUDADRIVER_TEST_CHILD"

// again runs tests again in a separate program, with one more variable in the environment, and
// returns what they print.
func again(t *testing.T, variable string, tests ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^("+strings.Join(tests, "|")+")$")
	cmd.Env = append(os.Environ(), variable, inChild+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass", name)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
	return string(out)
}

// requireDevice is kerneltest.RequireGPU for tests that launch no kernel and so do not need
// the tag cuda.
func requireDevice(t *testing.T) {
	t.Helper()
	err := cudadriver.Available()
	if err == nil {
		return
	}
	if kernels.Available() == nil || os.Getenv("REQUIRE_GPU") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// TestZeroIsNothing checks that 0 is no valid address, event, pool or size. Stream 0 is the
// default stream.
func TestZeroIsNothing(t *testing.T) {
	requireDevice(t)
	calls := calls()
	for _, name := range []string{
		"Malloc of 0", "Free", "FreeStream", "RecordEvent", "QueryEvent", "WaitEvent", "SyncEvent", "FreeEvent",
		"MallocAsync", "FreeAsync", "PoolReserved", "ResetPoolPeak", "TrimPool", "ClosePool",
		"MallocHost", "FreeHost", "CopyToHost", "CopyFromHost",
	} {
		want(t, name, calls[name](), 1)
	}
	for _, name := range []string{"MemInfo", "SyncStream", "IsCapturing", "Synchronize", "of a graph: PoolReserved", "of a graph: ResetPoolPeak", "of a graph: TrimPool"} {
		try(t, calls[name]())
	}
}

// try ends the test if err is not nil.
func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want checks an error's code.
func want(t *testing.T, what string, err error, code int) {
	t.Helper()
	var e *cudadriver.Error
	if !errors.As(err, &e) || e.Code != code || e.OutOfMemory() != (code == 2) {
		t.Errorf("%s: error %v, want code %d", what, err, code)
	}
}

func newStream(t testing.TB) kernels.Stream {
	s, err := kernels.NewStream()
	try(t, err)
	t.Cleanup(func() { try(t, s.Close()) })
	return s
}

// TestAlone runs a pool on two streams of this package, without kernels.
func TestAlone(t *testing.T) {
	requireDevice(t)
	var d cudadriver.Driver
	pool, err := allocator.NewPool(d, allocator.PoolOptions{MaxBytes: 64 << 20})
	try(t, err)
	var streams [2]uintptr
	for i := range streams {
		streams[i], err = d.NewStream()
		try(t, err)
	}
	for range 3 {
		for i, s := range streams {
			b, err := pool.Alloc(40<<20, s, "more than half of the limit")
			try(t, err)
			try(t, pool.RecordStream(b, streams[1-i]))
			try(t, pool.Free(b, s))
		}
	}
	for _, s := range streams {
		try(t, pool.ReleaseStream(s))
		try(t, d.SyncStream(s))
		try(t, d.FreeStream(s))
	}
	try(t, pool.Close())
}

// onNewThread makes a call on a new thread of the operating system.
func onNewThread(t *testing.T, name string, call func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock the thread ends with the goroutine
		done <- call()
	}()
	if err := <-done; err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestErrorsDoNotStay checks that a launch does not return the error of an earlier call.
func TestErrorsDoNotStay(t *testing.T) {
	kerneltest.RequireGPU(t)
	var d cudadriver.Driver
	s := newStream(t)
	p, err := d.Malloc(4096)
	try(t, err)
	try(t, s.Fill(p, 0, 4096))
	works := func() {
		t.Helper()
		try(t, s.Activate(kernels.FP32, p, p, 16))
		try(t, s.Synchronize())
	}
	_, err = d.Malloc(1 << 50)
	want(t, "Malloc of 1 PiB", err, 2)
	works()
	pool, err := cudadriver.NewMemPool()
	try(t, err)
	_, err = pool.MallocAsync(1<<50, s.Handle())
	want(t, "MallocAsync of 1 PiB", err, 2)
	works()
	for _, bytes := range []int64{0, -1} {
		_, err = d.Malloc(bytes)
		want(t, "Malloc", err, 1)
		_, err = pool.MallocAsync(bytes, s.Handle())
		want(t, "MallocAsync", err, 1)
	}
	want(t, "TrimPool(-1)", pool.TrimPool(-1), 1)
	want(t, "Free of no address", d.Free(12345), 1)
	works()
	try(t, pool.ClosePool())
	try(t, d.Free(p))
}

func TestMalloc(t *testing.T) {
	requireDevice(t)
	var d cudadriver.Driver
	before := cudadriver.Counters()
	p, err := d.Malloc(1 << 20)
	try(t, err)
	if p == 0 || p%allocator.Alignment != 0 {
		t.Errorf("address %#x is not aligned", p)
	}
	free, total, err := d.MemInfo()
	try(t, err)
	if free <= 0 || free >= total {
		t.Errorf("%d bytes free of %d", free, total)
	}
	try(t, d.Free(p))
	after := cudadriver.Counters()
	if after.Malloc != before.Malloc+1 || after.Free != before.Free+1 {
		t.Errorf("counters went from %+v to %+v", before, after)
	}
}

func TestIsCapturing(t *testing.T) {
	kerneltest.RequireGPU(t)
	var d cudadriver.Driver
	s, other := newStream(t), newStream(t)
	check := func(stream uintptr, want bool) {
		t.Helper()
		if got, err := d.IsCapturing(stream); got != want || err != nil {
			t.Errorf("stream %#x is capturing: %v, %v, want %v", stream, got, err, want)
		}
	}
	check(s.Handle(), false)
	try(t, s.BeginCapture())
	check(s.Handle(), true)
	check(other.Handle(), false)
	check(0, false)
	g, err := s.EndCapture()
	try(t, err)
	try(t, g.Close())
	check(s.Handle(), false)
}

// spinCycles keeps a stream busy for about ten milliseconds, in cycles of the GPU: far
// longer than the host's calls that follow.
const spinCycles = 20_000_000

func TestEvents(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	var d cudadriver.Driver
	s, other := newStream(t), newStream(t)
	try(t, s.Spin(1)) // the first launch of a kernel also loads it
	try(t, s.Synchronize())
	e, err := d.NewEvent()
	try(t, err)
	query := func() bool {
		done, err := d.QueryEvent(e)
		try(t, err)
		return done
	}
	if !query() {
		t.Error("an event that was never recorded is not done")
	}
	try(t, s.Spin(spinCycles))
	try(t, d.RecordEvent(e, s.Handle()))
	if query() {
		t.Error("the event is done before the work")
	}
	try(t, d.WaitEvent(other.Handle(), e))
	try(t, other.Synchronize())
	if !query() {
		t.Error("the other stream did not wait for the event")
	}
	try(t, s.Spin(spinCycles))
	try(t, d.RecordEvent(e, s.Handle()))
	try(t, d.SyncEvent(e))
	if !query() {
		t.Error("the event is not done after waiting for it")
	}
	try(t, d.FreeEvent(e))
}
