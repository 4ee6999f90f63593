package run

import (
	"encoding/csv"
	"os"
	"strconv"
	"strings"
	"testing"

	"mlpool/configs"
	"mlpool/internal/must"
	"mlpool/internal/text"
)

// TestEstimate compares the estimate with trainings on two GPUs, and on one with the same batch.
func TestEstimate(t *testing.T) {
	file, err := os.Open("../../../../assets/scaling_h200.csv")
	must.OK(t, err)
	defer file.Close()
	r := csv.NewReader(file)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil || strings.Join(rows[0][:9], ",") != "feat_dim,precision,executor,ranks,bsz,images,median_ms,val_ms,images_per_s" {
		t.Fatal(rows, err)
	}
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		must.OK(t, err)
		return v
	}
	compared := 0
	var one []string // the line of one GPU that precedes those of several
	for _, two := range rows[1:] {
		if two[3] == "1" {
			one = two
			continue
		}
		if _, ok := rates[two[1]]; !ok || one[4] != two[4] {
			continue
		}
		var cfg configs.Config
		cfg.Model.FeatDim, cfg.Model.NumLayers = int(number(two[0])), 4
		e, ok := newEstimate(cfg, two[1], 784, int(number(two[3])))
		if !ok {
			t.Fatalf("no estimate for %v", two)
		}
		got, want := e.speedup(number(two[4])), number(two[8])/number(one[8])
		if got < 0.75*want || got > 1.35*want || (got > 1) != (want > 1) {
			t.Errorf("width %s, batch %s, %s: a speedup of %.2f, measured %.2f", two[0], two[4], two[1], got, want)
		}
		compared++
	}
	if compared < 5 {
		t.Errorf("%s compared", text.Count(compared, "row"))
	}
}

func TestWorth(t *testing.T) {
	for _, c := range []struct {
		width, bsz, ranks int
		precision, want   string
	}{
		{784, 64, 2, "3xtf32", "2 GPUs are slower than one with batches of 64: by what H200s over NVLink need, they pay from batches of about 110 on each"},
		{784, 1024, 2, "3xtf32", ""},
		{2048, 64, 2, "tf32", "2 GPUs are slower than one with batches of 64: by what H200s over NVLink need, they pay from batches of about 570 on each"},
		{2048, 1024, 2, "tf32", ""},
		{2048, 64, 8, "tf32", "8 GPUs are slower than one with batches of 64: by what H200s over NVLink need, they pay from batches of about 130 on each"},
	} {
		var cfg configs.Config
		cfg.Model.FeatDim, cfg.Model.NumLayers = c.width, 4
		e, ok := newEstimate(cfg, c.precision, 784, c.ranks)
		if got := e.worth(c.bsz); !ok || got != c.want {
			t.Errorf("width %d, %d ranks: %q, want %q", c.width, c.ranks, got, c.want)
		}
		if e.speedup(float64(e.pays())) <= 1 || e.speedup(0.85*float64(e.pays())) > 1 {
			t.Errorf("width %d, %d ranks pay from %d on: speedups of %.2f there, and %.2f before", c.width, c.ranks, e.pays(), e.speedup(float64(e.pays())), e.speedup(0.85*float64(e.pays())))
		}
	}
	for _, c := range []struct {
		precision string
		ranks     int
	}{{"tf32", 1}, {"", 2}} {
		if _, ok := newEstimate(configs.Config{}, c.precision, 784, c.ranks); ok {
			t.Errorf("an estimate of %q on %d ranks", c.precision, c.ranks)
		}
	}
}
