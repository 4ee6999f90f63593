package allocator_test

import (
	"flag"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest/hostile"
)

var (
	hostileOps    = flag.Int64("hostile.ops", 0, "operations of all programs; 0 is few enough for every day")
	hostileSeed   = flag.Uint64("hostile.seed", 0, "run only the program of this seed")
	hostileTarget = flag.String("hostile.target", "", "run only programs on this target")
	hostileLog    = flag.Bool("hostile.log", false, "write the calls of the one program to standard error")
)

// hostileDefault is the number of operations of a test run without flags.
func hostileDefault() int64 {
	switch {
	case underRace():
		return 400_000
	case testing.Short():
		return 1_000_000
	}
	return 2_000_000
}

// underRace reports whether the race detector is built in.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestHostile runs random programs on every allocator; see package hostile.
func TestHostile(t *testing.T) {
	t.Cleanup(allocator.BoundSpaces())
	targets := hostile.Targets()
	if *hostileTarget != "" {
		targets = []string{*hostileTarget}
	}
	ops := *hostileOps
	if ops == 0 {
		ops = hostileDefault()
	}
	for _, target := range targets {
		t.Run(target, func(t *testing.T) {
			if *hostileSeed != 0 {
				var log io.Writer
				if *hostileLog {
					log = os.Stderr
				}
				if _, err := hostile.Run(*hostileSeed, target, log); err != nil {
					t.Error(err)
				}
				return
			}
			made, failed, failures := hostile.Campaign(1, ops/int64(len(targets)), target)
			for _, err := range failures {
				t.Error(err)
			}
			t.Logf("%d operations, %d programs failed", made, failed)
		})
	}
}
