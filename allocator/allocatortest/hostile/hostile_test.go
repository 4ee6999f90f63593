package hostile

import (
	"io"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestUnknownTarget(t *testing.T) {
	if _, err := Run(1, "pond", io.Discard); err == nil || !strings.Contains(err.Error(), `no target "pond"`) {
		t.Errorf("Run on an unknown target: %v", err)
	}
}

// TestRepeats runs programs twice and compares their calls. Some of them map pages.
func TestRepeats(t *testing.T) {
	mapped := 0
	for _, target := range []string{"pool", "malloc", "async"} {
		for seed := uint64(1); seed <= 8; seed++ {
			var logs [2]strings.Builder
			for i := range logs {
				// The test compares logs, whether the program fails or not.
				_, _ = Run(seed, target, &logs[i])
			}
			a, b := logs[0].String(), logs[1].String()
			if a != b || strings.Count(a, "\n") < 100 {
				t.Errorf("%s, seed %d: logs of %d and %d bytes differ or are short", target, seed, len(a), len(b))
			}
			mapped += strings.Count(a, "MapPages")
		}
	}
	if mapped == 0 {
		t.Error("no program maps pages")
	}
}

// plain returns an allocator that has only what it must.
func plain(d *allocatortest.Fake) allocator.Allocator {
	return struct{ allocator.Allocator }{allocator.NewMalloc(d)}
}

// TestSound shows that a correct allocator passes.
func TestSound(t *testing.T) {
	for seed := range uint64(100) {
		if made, err := RunOn(seed, "sound", plain); err != nil || made < 300 {
			t.Errorf("%d operations: %v", made, err)
		}
	}
}

// BenchmarkOperation measures one operation of a program. On malloc that is the cost of
// the program and the device.
func BenchmarkOperation(b *testing.B) {
	for name, build := range map[string]func(*allocatortest.Fake) allocator.Allocator{
		"malloc": plain,
		"pool":   func(d *allocatortest.Fake) allocator.Allocator { return pool(d) },
	} {
		b.Run(name, func(b *testing.B) {
			for n, seed := 0, uint64(0); n < b.N; seed++ {
				made, err := RunOn(seed, "benchmark", build)
				if err != nil {
					b.Fatal(err)
				}
				n += made
			}
		})
	}
}
