package device

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/kernels"
)

// shop is a queue with a choice of kernels, each of which takes a known time for a GEMM.
type shop struct {
	HostQueue
	sold   map[kernels.Layout]map[string]time.Duration // times of kernels by their names; "" is that of the table
	chosen map[Choice]string
	took   time.Duration // since Mark(0)
	fails  string        // the kernel that cannot be launched
}

func (s *shop) Candidates(g kernels.GEMM) (names []string) {
	for name := range s.sold[g.Layout] {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *shop) Choose(g kernels.GEMM, kernel string) error {
	s.chosen[kindOf(g)] = kernel
	return nil
}

func (s *shop) launch(g kernels.GEMM) error {
	name := s.chosen[kindOf(g)]
	if s.fails != "" && name == s.fails {
		return fmt.Errorf("no launch")
	}
	s.took += s.sold[g.Layout][name]
	return nil
}

func (s *shop) GEMM(g kernels.GEMM) error { return s.launch(g) }

func (s *shop) GroupedGEMM(group []kernels.GEMM) error {
	for _, g := range group {
		if err := s.launch(g); err != nil {
			return err
		}
	}
	return nil
}

func (s *shop) Mark(i int) error {
	if i == 0 {
		s.took = 0
	}
	return nil
}

func (s *shop) Elapsed(int, int) (time.Duration, error) { return s.took, nil }

// TestTune chooses the fastest kernels of a step of a layer of images and the classifier.
func TestTune(t *testing.T) {
	s := &shop{
		sold: map[kernels.Layout]map[string]time.Duration{
			kernels.NN: {"": 100, "usual": 100, "fast": 50, "faster": 40},
			kernels.TN: {"": 100, "usual": 100, "hardly faster": 99},
		},
		chosen: make(map[Choice]string),
	}
	b := newBench(t, s, true)
	step := func() error { return b.step(0, 10, 0) }
	got, err := b.Tune(step)
	want := []Choice{{kernels.NN, kernels.Activate, true, 10, 8, 12, "faster"}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("chose %+v, error %v, want %+v", got, err, want)
	}
	if b.queue != Queue(s) {
		t.Errorf("the device is left with a queue of type %T", b.queue)
	}
	for kind, name := range s.chosen {
		if (kind.Layout == kernels.NN) != (name == "faster") {
			t.Errorf("%+v is left with kernel %q", kind, name)
		}
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back []Choice
	if err := json.Unmarshal(text, &back); err != nil || !slices.Equal(back, got) {
		t.Errorf("%s is read as %+v, %v", text, back, err)
	}
	if err := json.Unmarshal([]byte(`{"layout": "tt"}`), new(Choice)); err == nil {
		t.Error("layout tt is read")
	}

	clear(s.chosen)
	if err := Choose(s, back); err != nil || s.chosen[Choice{Layout: kernels.NN, Epilogue: kernels.Activate, Images: true, M: 10, N: 8, K: 12}] != "faster" {
		t.Errorf("chosen are %v, error %v", s.chosen, err)
	}
	s.fails = "fast"
	if _, err := b.Tune(step); err == nil || !strings.Contains(err.Error(), `kernel "fast": no launch`) {
		t.Errorf("a kernel that cannot be launched gives error %v", err)
	}
	if _, err := newBench(t, new(HostQueue), true).Tune(step); err == nil {
		t.Error("the CPU has a choice of kernels")
	}
	if err := Choose(new(HostQueue), back); err == nil {
		t.Error("a choice was made on the CPU")
	}
}
