package traintest

import (
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/internal/report"
)

// CheckRecording fails the test if parts of a recording contradict each other.
func CheckRecording(t *testing.T, rec report.Recording) {
	t.Helper()
	var most int64
	before := -1.0
	for _, m := range rec.Memory {
		if m.MS <= before || m.Live > m.Reserved || m.Live < 0 {
			t.Errorf("peak %+v comes after %v ms", m, before)
		}
		most, before = max(most, m.Live), m.MS
	}
	if most == 0 || rec.Step == nil || rec.Peak == nil {
		t.Fatalf("%d peaks, step %v, peak %v", len(rec.Memory), rec.Step, rec.Peak)
	}
	for _, m := range rec.Moments {
		sum := int64(0)
		for _, bytes := range m.Gap.Bytes {
			sum += bytes
		}
		if m.Gap.Live <= 0 || sum != m.Gap.Reserved-m.Gap.Live {
			t.Errorf("at %v ms the causes add up to %d bytes of %d − %d", m.MS, sum, m.Gap.Reserved, m.Gap.Live)
		}
	}
	if len(rec.Moments) < len(rec.Step.Calls)/2 {
		t.Errorf("%d moments of a step with %d calls", len(rec.Moments), len(rec.Step.Calls))
	}
	s := rec.Step
	ended := -1000.0 // the clocks of a GPU and of the host are a little apart
	for _, k := range s.Kernels {
		if k.Name == "" || k.Detail == "" || k.Length < 0 || k.Start < ended-0.001 || k.Start+k.Length > s.Length+0.001 {
			t.Errorf("kernel %+v in a step of %v µs, after %v", k, s.Length, ended)
		}
		ended = k.Start + k.Length
	}
	ended = 0
	for _, c := range s.Calls {
		if !strings.HasSuffix(c.Detail, " bytes") || c.Length <= 0 || c.Start < ended-0.001 || c.Start+c.Length > s.Length+0.001 {
			t.Errorf("call %+v in a step of %v µs, after %v", c, s.Length, ended)
		}
		ended = c.Start + c.Length
	}
	for i, b := range s.Blocks {
		if s.Calls[i].Name != "alloc "+b.Name || b.Length <= 0 || b.Start+b.Length > s.Length {
			t.Errorf("block %+v in a step of %v µs, of call %+v", b, s.Length, s.Calls[i])
		}
	}
	if s.Steps < 1 || s.Steps > 9 {
		t.Errorf("one of %d steps", s.Steps)
	}
	if len(s.Kernels) < 5 || len(s.Calls) != 2*len(s.Blocks) || len(s.Blocks) < 5 {
		t.Errorf("%d kernels, %d calls and %d blocks", len(s.Kernels), len(s.Calls), len(s.Blocks))
	}
}

// LiveIn returns the bytes that the live blocks of a map were requested with.
func LiveIn(m *allocator.Map) (bytes int64) {
	for _, g := range m.Segments {
		for _, b := range g.Blocks {
			if b.State == allocator.MapLive {
				bytes += b.Asked
			}
		}
	}
	return bytes
}

func MostLive(memory []report.Peak) (most int64) {
	for _, m := range memory {
		most = max(most, m.Live)
	}
	return most
}
