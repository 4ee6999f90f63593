package run

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/kernels/device"
)

// TestProfileGaps has steps that take less time than their operations.
func TestProfileGaps(t *testing.T) {
	for _, c := range []struct {
		step time.Duration
		gpu  bool
		want string
	}{
		{12 * time.Microsecond, false, "gaps between them 2.00 16.7 %"},
		{10 * time.Microsecond, true, "gaps between them 0.00 0.0 %"},
		{9 * time.Microsecond, false, "gaps between them: none, within noise"},
		{9 * time.Microsecond, true, "gaps between them: none, operations overlap"},
	} {
		var stdout strings.Builder
		s := &session{stdout: &stdout}
		s.printProfile("custom", device.Profile{Steps: 1, Step: c.step, Ops: []device.OpTime{{Name: "gemm", Time: 10 * time.Microsecond}}}, c.gpu)
		all := strings.Split(strings.TrimSpace(stdout.String()), "\n")
		if got := strings.Join(strings.Fields(all[len(all)-2]), " "); got != c.want {
			t.Errorf("a step of %v, GPU %t: %q, want %q", c.step, c.gpu, got, c.want)
		}
	}
}

// TestLinesFit prints large numbers, of one run and of a comparison.
func TestLinesFit(t *testing.T) {
	rec := rundir.Record{
		Allocator: "custom:bestfit", Epoch: 50, Steps: 938, Loss: 0.01234, ValLoss: 0.02345, ValAcc: 1,
		TrainMS: 12345.6, ValMS: 1234.5, AllocatorMS: 1234.56, Allocs: 123456, DriverCalls: 123456, PeakAllocated: 1 << 39, PeakReserved: 1 << 39,
	}
	for _, c := range []struct {
		runners     []*runner
		has, hasNot string
	}{
		{[]*runner{{Subject: backend.Subject{Kind: backend.CustomPool}}}, "epoch 50/50  loss ", "custom"},
		{[]*runner{{Subject: backend.Subject{Kind: backend.CustomPool, Options: "bestfit"}}, {Subject: backend.Subject{Kind: backend.CUDAAsync}}}, "custom:bestfit  epoch ", "driver"},
	} {
		var out bytes.Buffer
		s := &session{runners: c.runners, stdout: &out, bound: 50}
		s.cfg.Train.TimeEpoch = true
		s.printEpoch(rec)
		line := strings.TrimSuffix(out.String(), "\n")
		if len(line) > 120 || strings.Contains(line, "\n") || !strings.HasPrefix(line, c.has) || strings.Contains(line, c.hasNot) {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}
