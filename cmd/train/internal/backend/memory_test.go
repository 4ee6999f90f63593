package backend

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
)

// TestTraceTooLarge names the key that needs most of the memory.
func TestTraceTooLarge(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "[allocator]\ntrace = 'trace.csv'\ntrace_events = 1073741824\n")
	cfg, set := traintest.Loaded(t, path)
	needs := hostNeeds(cfg, set, []Subject{{Kind: CustomPool}, {Kind: PlainMalloc}})
	if err := enough(cfg, "host", 1<<50, needs...); err != nil {
		t.Error(err)
	}
	err := enough(cfg, "host", 1<<36, needs...)
	if err == nil || !strings.Contains(err.Error(), ": allocator.trace_events: the run needs at least ") ||
		!strings.HasSuffix(err.Error(), " GiB of host memory, most of it for a trace of 1073741824 calls, and 64.0 GiB is available") {
		t.Errorf("got %v", err)
	}
}

// TestHostMemory reads a file like /proc/meminfo.
func TestHostMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system is asked in another way")
	}
	dir := t.TempDir()
	t.Setenv("HOST_PROC", dir)
	traintest.Write(t, filepath.Join(dir, "meminfo"), "MemTotal: 24684120 kB\nMemAvailable:   100 kB\n")
	if got, known := hostMemory(); !known || got < 100<<10 {
		t.Errorf("%d, %v, want 100 KiB and swap", got, known)
	}
	t.Setenv("HOST_PROC", filepath.Join(dir, "none"))
	if _, known := hostMemory(); known {
		t.Error("a system that does not say it says how much memory there is")
	}
}
