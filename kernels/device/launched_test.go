package device

import (
	"errors"
	"strings"
	"testing"

	"mlpool/kernels"
)

// failing is a recording that refuses one GEMM.
type failing struct {
	*recording
	gemms int // until then, that one included
}

func (f *failing) GEMM(g kernels.GEMM) error {
	if f.gemms--; f.gemms == 0 {
		return errors.New("refused")
	}
	return f.recording.GEMM(g)
}

// TestFaultBesideAFullGroup refuses the dgrad that follows a group of wgrads which has no
// room left: the next Backward is not disturbed.
func TestFaultBesideAFullGroup(t *testing.T) {
	f := &failing{recording: &recording{t: t}}
	b := newBench(t, f, true)
	widths := make([]int, kernels.MaxGroup+4)
	for i := range widths {
		widths[i] = 4
	}
	layers := b.newLayers(t, b.tensor(t, 12, 12), widths...)
	run := func() string {
		f.recording.launches()
		if err := b.backward(layers); err != nil {
			t.Fatal(err)
		}
		return f.recording.launches()
	}
	run()
	want := run() // after a Backward
	f.gemms = kernels.MaxGroup
	if err := b.backward(layers); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
		t.Errorf("error %v", err)
	}
	run()
	if got := run(); got != want {
		t.Errorf("after a fault a Backward launches %q, want %q", got, want)
	}
}
