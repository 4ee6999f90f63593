package backend

import (
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestTraceTooLarge names the key that needs most of the memory.
func TestTraceTooLarge(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "[allocator]\ntrace = 'trace.csv'\ntrace_events = 1073741824\n")
	cfg, set := traintest.Loaded(t, path)
	needs := hostNeeds(cfg, set, []Subject{{Kind: CustomPool}, {Kind: PlainMalloc}})
	must.OK(t, enough(cfg, "host", 1<<50, needs...))
	err := enough(cfg, "host", 1<<36, needs...)
	if err == nil || !strings.Contains(err.Error(), ": allocator.trace_events: the run needs at least ") ||
		!strings.HasSuffix(err.Error(), " GiB of host memory, most of it for a trace of 1073741824 calls, and 64.0 GiB is available") {
		t.Errorf("got %v", err)
	}
}
