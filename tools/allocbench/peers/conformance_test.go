package peers

import (
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

const deviceBytes = 1 << 30

// TestConformance runs the suite.
func TestConformance(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
				f := allocatortest.NewFake(deviceBytes)
				env := allocatortest.NewEnv(t, f, allocator.NewAsync(open(name, f)))
				env.Returns = true
				return env
			})
		})
	}
}
