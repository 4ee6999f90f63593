package hostile

import (
	"slices"
	"strings"
	"testing"
)

// TestReset uses a device again that had more memory: it hands out the addresses that a
// new one does.
func TestReset(t *testing.T) {
	addresses := func(d *Device) (all []uintptr) {
		d.reset(1<<20, nil)
		for range 3 {
			addr, err := d.Malloc(700 << 10)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, addr)
			if err := d.Free(addr); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	used := &Device{}
	used.reset(64<<20, nil)
	if got, want := addresses(used), addresses(&Device{}); !slices.Equal(got, want) {
		t.Errorf("a device that is used again hands out %#x, a new one %#x", got, want)
	}
}

// TestRepeats runs programs twice and compares their calls. Some map pages.
func TestRepeats(t *testing.T) {
	mapped := 0
	for _, target := range []string{"pool", "malloc", "async"} {
		for seed := uint64(1); seed <= 8; seed++ {
			var logs [2]strings.Builder
			for i := range logs {
				// Whether the program fails is not what this test is about.
				_, _ = Run(seed, target, &logs[i])
			}
			a, b := logs[0].String(), logs[1].String()
			if a != b || strings.Count(a, "\n") < 100 {
				t.Errorf("%s, seed %d: logs of %d and %d bytes differ or are short", target, seed, len(a), len(b))
			}
			mapped += strings.Count(a, "are mapped at")
		}
	}
	if mapped == 0 {
		t.Error("no program maps pages")
	}
}
