package recording

import (
	"testing"

	"mlpool/internal/report"
)

func TestMedianStep(t *testing.T) {
	for _, c := range []struct {
		lengths []float64
		want    float64
	}{{[]float64{7}, 7}, {[]float64{90, 7}, 90}, {[]float64{90, 7, 8}, 8}, {[]float64{8, 90, 6, 80, 7}, 8}} {
		var steps []*report.Timeline
		for _, l := range c.lengths {
			steps = append(steps, &report.Timeline{Length: l})
		}
		if got := medianStep(steps); got.Length != c.want || got.Steps != len(c.lengths) {
			t.Errorf("of %v: %+v, want %v", c.lengths, got, c.want)
		}
	}
}
