package device

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestFaultOfALaunch refuses launches. The step returns the fault, and work queued before may
// still run when the next step begins.
func TestFaultOfALaunch(t *testing.T) {
	for _, bad := range []string{"images nn+relu", "images nn+relu A", "classifier B", "tn+sgd A C | images tn+sgd A C"} {
		b, r := newRecording(t)
		r.bad = bad
		if bad == "images nn+relu A" {
			if err := b.step(0, 10, 0); err != nil { // after which something is known
				t.Fatal(err)
			}
			r.launches()
		}
		if err := b.step(0, 10, 0); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
			t.Errorf("%s: error %v", bad, err)
		}
		r.bad = ""
		r.launches()
		if err := b.step(0, 10, 0); err != nil {
			t.Errorf("%s: the next step: %v", bad, err)
		}
		if s, want := r.launches(), "images nn+relu, classifier B, tn+sgd A C | images tn+sgd A C"; s != want {
			t.Errorf("%s: the next step is %q, want %q", bad, s, want)
		}
	}
}

// TestFaultInBackward refuses each launch of a Backward. Those before it are queued, and none
// after it, since it might read a tensor that was never written.
func TestFaultInBackward(t *testing.T) {
	for _, c := range []struct {
		fuse, fuses bool
		launches    []string
	}{
		{true, false, []string{"nt+drelu A B C", "nt+drelu B C", "tn+sgd A B C | tn+sgd A B C | tn+sgd A B C | tn+sgd A C"}},
		{true, true, []string{"dgrad+wgrad nt+drelu A B C", "dgrad+wgrad nt+drelu B C", "tn+sgd A B C | tn+sgd A C"}},
		{false, false, []string{"tn A B", "sgd", "nt A B", "relu backward", "tn A B"}},
	} {
		for i, bad := range c.launches {
			if slices.Index(c.launches, bad) < i {
				continue
			}
			r := record(t, c.fuses, false)
			b := newBench(t, r, c.fuse)
			layers := b.newLayers(t, b.tensor(t, 12, 12), 8, 6, 4, 10)
			b.Activate(b.w0) // something known, and unlike the operands
			r.launches()
			r.bad = bad
			if err := b.backward(layers); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
				t.Errorf("%s: error %v", bad, err)
			}
			if s, want := r.launches(), strings.Join(c.launches[:i], ", "); s != want {
				t.Errorf("%s: queued %q, want %q", bad, s, want)
			}
		}
	}
}

// TestFailedCapture makes a capture fail. Its operations never ran, and must not count as the
// last launch.
func TestFailedCapture(t *testing.T) {
	b, r := newRecording(t)
	b.CaptureFrom(b.alloc)
	if err := b.step(0, 10, 0); err != nil {
		t.Fatal(err)
	}
	err := b.Replay(0, func() error {
		b.Hidden(b.w0, b.w1)
		return errors.New("refused")
	})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	r.launches()
	if err := b.step(0, 10, 0); err != nil {
		t.Fatal(err)
	}
	if s, want := r.launches(), "images nn+relu, "; !strings.HasPrefix(s, want) {
		t.Errorf("the next step is %q, want %q", s, want)
	}
}
