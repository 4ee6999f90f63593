//go:build linux && cgo

package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// raceEnabled says that the tests have Go's race detector.
var raceEnabled bool

// TestPrograms builds the library, and runs the programs of testdata with it on the emulated driver of
// kernels/emulator. Device memory is then the host's, so C's sanitizers see it. Before, tests in C of what the front keeps,
// and of captured streams, run on a library that stands in for the driver and takes no time to build. With -short
// there are no others.
func TestPrograms(t *testing.T) {
	if raceEnabled {
		t.Skip("Go's race detector cannot be loaded into a C program: TestGoroutines is for it")
	}
	for _, tool := range []string{"gcc", "g++", "python3", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	command(t, "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", at("mlpool/libmlpool.so"), ".")
	command(t, "../../tools/release/package.sh", at("mlpool"))
	flags := strings.Fields(command(t, "env", "PKG_CONFIG_PATH="+at("mlpool/pkgconfig"), "pkg-config", "--cflags", "--libs", "mlpool"))
	compile := func(compiler, program, source string, options ...string) {
		options = append([]string{"-g", "-Wall", "-Wextra", "-Werror", "-o", at(program), source}, options...)
		command(t, compiler, append(append(options, flags...), "-lpthread", "-ldl")...)
	}
	t.Run("front", func(t *testing.T) {
		command(t, "gcc", "-shared", "-fPIC", "-o", at("libcuda.so.1"), "../../allocator/cudadriver/testdata/olddriver.c")
		compile("gcc", "test_front", "testdata/test.c")
		program(t, []string{"LD_LIBRARY_PATH=" + folder + ":" + at("mlpool")}, at("test_front"), folder, "blocks", "front", "room", "release", "destroyed", "counts", "streams", "refused sleep", "captures", "capture ids", "per thread", "release beside capture", "trim beside capture", "plugin", "captured stream", "in hand", "rooms", "destroy beside free")
	})
	if testing.Short() {
		return
	}
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	sources, err := filepath.Glob("../../kernels/emulator/*.cpp")
	if err != nil || len(sources) == 0 {
		t.Fatal("no emulator:", err)
	}
	// All but the instructions of kernels, which no memory needs.
	sources = slices.DeleteFunc(sources, func(path string) bool {
		return slices.Contains([]string{"copies.cpp", "tensorcores.cpp"}, filepath.Base(path))
	})
	shared := []string{"-std=c++20", "-shared", "-fPIC", "-w", "-Wl,-z,defs", "-I../../kernels/emulator", "-o", at("libemulator.so")}
	command(t, "g++", append(shared, sources...)...)
	compile("gcc", "test_c", "testdata/test.c", sanitize...)
	compile("g++", "test_cpp", "testdata/test.cpp", append(sanitize, "-std=c++17")...)
	linkRMM(t, at("rmm"), "cuda/memory_resource", "cuda/stream_ref", "cuda_runtime_api.h", "rmm/cuda_device.hpp", "rmm/error.hpp")
	compile("g++", "test_rmm", "testdata/test_rmm.cpp", append(sanitize, "-std=c++17", "-I"+at("rmm"))...)
	linkRMM(t, at("rmm"), "rmm/mr/device_memory_resource.hpp")
	compile("g++", "test_rmm_base", "testdata/test_rmm.cpp", append(sanitize, "-std=c++17", "-DRMM_BASE", "-I"+at("rmm"))...)
	// Python leaks on purpose, and Go's runtime too.
	env := []string{
		"LD_PRELOAD=" + command(t, "gcc", "-print-file-name=libasan.so") + " " + at("libemulator.so"), "LD_LIBRARY_PATH=" + at("mlpool"),
		"ASAN_OPTIONS=detect_leaks=0", "PYTHONPATH=" + folder, "EMULATOR_DEVICES=2",
	}
	t.Run("C", func(t *testing.T) { program(t, env, at("test_c"), folder) })
	t.Run("threads", func(t *testing.T) { // of C, with the sanitizer that finds data races in the front
		// On many kernels gcc's ends with "unexpected memory mapping" if addresses are random.
		if out, err := exec.Command("setarch", "-R", "true").CombinedOutput(); err != nil {
			t.Skipf("%v %s", err, out)
		}
		race := []string{"CGO_CFLAGS=-fsanitize=thread -O2 -g", "CGO_LDFLAGS=-fsanitize=thread"}
		command(t, "env", append(race, "go", "build", "-buildmode=c-shared", "-o", at("race/libmlpool.so"), ".")...)
		compile("gcc", "race/test_c", "testdata/test.c", "-fsanitize=thread")
		preload := "LD_PRELOAD=" + command(t, "gcc", "-print-file-name=libtsan.so") + " " + at("libemulator.so")
		program(t, nil, "setarch", "-R", "env", preload, "LD_LIBRARY_PATH="+at("race"), at("race/test_c"), folder, "threads")
	})
	t.Run("C++", func(t *testing.T) { program(t, env, at("test_cpp")) })
	t.Run("RMM", func(t *testing.T) { program(t, env, at("test_rmm")) })
	t.Run("RMM 25.10", func(t *testing.T) { program(t, env, at("test_rmm_base")) })
	t.Run("CMake", func(t *testing.T) {
		if _, err := exec.LookPath("cmake"); err != nil {
			t.Skip(err)
		}
		command(t, "cmake", "-S", "testdata", "-B", at("cmake"), "-DCMAKE_PREFIX_PATH="+at("mlpool"))
		command(t, "cmake", "--build", at("cmake"))
		program(t, env[:1], at("cmake/test_cpp"))
	})
	t.Run("Python", func(t *testing.T) { program(t, env, "python3", "-B", "testdata/test.py") })
}

// linkRMM makes testdata/rmm.hpp each of the headers in a folder.
func linkRMM(t *testing.T, folder string, headers ...string) {
	t.Helper()
	stub, err := filepath.Abs("testdata/rmm.hpp")
	for _, header := range headers {
		path := filepath.Join(folder, header)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(stub, path))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// program runs a program of testdata, which says how many of its tests failed.
func program(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), " passed, 0 failed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// newTestPool returns a pool over a fake driver.
func newTestPool(t *testing.T) (*pool, *allocatortest.Fake) {
	t.Helper()
	f := allocatortest.NewFake(1 << 30)
	base, err := allocator.NewPool(f, allocator.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pool{alloc: base, base: base, driver: new(peered)}
	p.captures.pool = p
	return p, f
}

// TestGoroutines calls a pool from several goroutines, each with blocks of its own on a stream of its own.
func TestGoroutines(t *testing.T) {
	p, f := newTestPool(t)
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(k), 1))
			on := allocator.Stream(k%4 + 1)
			type held struct {
				addr  uintptr
				index uint32
			}
			var mine []held
			for i := range 500 {
				if len(mine) > 10 || i > 480 && len(mine) > 0 {
					at := random.IntN(len(mine))
					if err := p.free(mine[at].addr, &mine[at].index, on); err != nil {
						t.Error(err)
					}
					mine = slices.Delete(mine, at, at+1)
				}
				addr, at, _, err := p.allocate(&request{bytes: random.Int64N(1 << 18), alignment: 1 << random.IntN(13), stream: on, tag: "x"})
				if err != nil {
					t.Error(err)
					return
				}
				if mine = append(mine, held{addr, at.index}); i%50 == 0 {
					_, _ = p.report(), p.memory()
				}
			}
			for _, b := range mine {
				if err := p.free(b.addr, &b.index, on); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if err := f.Leftover(); err != nil {
		t.Error(err)
	}
}

// TestLimitBesideFirstRequest limits a tag while another goroutine makes the pool's first request. Either the limit comes
// too late, or it counts the request.
func TestLimitBesideFirstRequest(t *testing.T) {
	for range 2000 {
		p, _ := newTestPool(t)
		r := request{bytes: 1 << 20, alignment: 1, stream: 1, tag: "x"}
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { _, _, _, err = p.allocate(&r) })
		wg.Go(func() { _ = p.report() })
		late := p.limitTag("x", r.bytes)
		if wg.Wait(); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := p.allocate(&r); (err == nil) != (late != nil) {
			t.Fatalf("the limit: %v; a request beyond it: %v", late, err)
		}
	}
}

// TestRefusedFree frees a block that another stream uses while the driver refuses events. The block stays live, and a
// later free frees it.
func TestRefusedFree(t *testing.T) {
	p, f := newTestPool(t)
	addr, at, _, err := p.allocate(&request{bytes: 1 << 20, alignment: 1, stream: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.recordStream(addr, at.index, 2); err != nil {
		t.Fatal(err)
	}
	f.FailAt(1, "RecordEvent")
	if err := p.free(addr, &at.index, 1); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("free while the driver refuses events: %v", err)
	}
	if err := p.free(addr, &at.index, 1); err != nil {
		t.Errorf("free of a block whose free failed: %v", err)
	}
	if err := p.free(addr, &at.index, 1); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("free of a block that is free: %v", err)
	}
	if err := errors.Join(p.close(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestSleepTogether has the host refuse memory for what the pool, or a tag, would keep: then neither sleeps.
func TestSleepTogether(t *testing.T) {
	for _, refused := range []int{0, 1} {
		p, f := newTestPool(t)
		drivers := []*allocatortest.Fake{f, allocatortest.NewFake(1 << 30)}
		tag, err := allocator.NewPool(drivers[1], allocator.PoolOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.captures.byTag = map[string]*captured{"weights": {tag: "weights", alloc: tag}}
		for _, a := range []*allocator.Pool{p.base, tag} {
			if _, err := a.Alloc(1<<20, 1, "kept"); err != nil {
				t.Fatal(err)
			}
		}
		drivers[refused].FailAt(1, "MallocHost")
		if err := p.sleep(true); err == nil || asleep(p.base) || asleep(tag) {
			t.Errorf("allocator %d refused: %v; asleep: %v, tag %v", refused, err, asleep(p.base), asleep(tag))
		}
		if err := tag.Sleep(true); err != nil {
			t.Fatal(err)
		}
		drivers[0].FailAt(1, "MallocHost")
		if err := p.sleep(true); err == nil || asleep(p.base) || !asleep(tag) {
			t.Errorf("a tag that slept: %v; asleep: %v, tag %v", err, asleep(p.base), asleep(tag))
		}
		if err := p.sleep(true); err != nil || !asleep(p.base) {
			t.Error(err)
		}
	}
}

// TestTrimWhileACaptureCloses trims a pool whose captures close after their list was taken.
func TestTrimWhileACaptureCloses(t *testing.T) {
	newPool := func() *allocator.Pool {
		p, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := &pool{alloc: newPool()}
	gone := &captured{id: 1, alloc: newPool()}
	p.captures.byID = map[uint64]*captured{1: gone}
	if err := gone.alloc.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.trim(0); err != nil {
		t.Error(err)
	}
	if err := p.alloc.(*allocator.Pool).Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.trim(0); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("trim of a closed pool: %v, want %v", err, allocator.ErrClosed)
	}
}

// TestRefusedPostponedFree has the driver refuse the event of a free that waited until no capture was open. The program
// has freed the block, so it gets no error, and the pool frees the block at the next flush.
func TestRefusedPostponedFree(t *testing.T) {
	p, f := newTestPool(t)
	p.captures.byID = map[uint64]*captured{1: {id: 1, alloc: p.base}}
	addr, at, _, err := p.allocate(&request{bytes: 1 << 20, alignment: 1, stream: 1})
	if err := errors.Join(err, p.recordStream(addr, at.index, 2), p.captures.begin(1, nil), p.free(addr, &at.index, 1)); err != nil {
		t.Fatal(err)
	}
	f.FailAt(1, "RecordEvent")
	if err := p.captures.end(1); err != nil || p.base.Stats().Frees != 0 {
		t.Errorf("end of a capture while the driver refuses events: %v, %d frees", err, p.base.Stats().Frees)
	}
	if p.flush(); p.base.Stats().Frees != 1 {
		t.Error("the free is not tried again")
	}
	if err := errors.Join(p.base.Close(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestUnreturnedCapture frees the last block of captures that were released while the driver, of which there is none,
// cannot wait. The block is free.
func TestUnreturnedCapture(t *testing.T) {
	p, f := newTestPool(t)
	graph, err := allocator.NewPool(f, allocator.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.driver, p.captures.byID = &peered{}, map[uint64]*captured{1: {id: 1, alloc: graph}}
	addr, at, _, err := p.allocate(&request{bytes: 1 << 20, alignment: 1, stream: 1, id: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.free(addr, &at.index, 1); err != nil {
		t.Errorf("free: %v", err)
	}
	if err := p.free(addr, &at.index, 1); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("free of a block that is free: %v", err)
	}
	if err := errors.Join(p.close(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// command runs a command and returns its output without the line's end.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestLimited takes and gives memory that the driver refuses now and then, under a limit.
func TestLimited(t *testing.T) {
	d := limited{sizes: map[uintptr]int64{}}
	d.limit(10)
	refused := errors.New("refused")
	take := func(bytes int64, of uintptr, err error) error {
		_, err = d.take(bytes, func(int64) (uintptr, error) { return of, err })
		return err
	}
	for _, step := range []struct {
		take, give uintptr // bytes, which are the name of the memory, too
		driver     error
		want       error
		taken      int64
	}{
		{take: 6, taken: 6},
		{take: 4, driver: refused, want: refused, taken: 6},
		{take: 5, want: limitError(10), taken: 6},
		{take: 4, taken: 10},
		{give: 6, driver: refused, want: refused, taken: 10},
		{give: 6, taken: 4},
		{give: 4},
	} {
		var err error
		if step.take > 0 {
			err = take(int64(step.take), step.take, step.driver)
		} else {
			err = d.give(step.give, func(uintptr) error { return step.driver })
		}
		if err != step.want || d.taken != step.taken {
			t.Errorf("%+v: %v, %d taken", step, err, d.taken)
		}
	}
}
