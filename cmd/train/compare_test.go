package main

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
)

// TestCompareInterrupted ends comparisons where the allocators have done unequal
// numbers of epochs: only what all have done is compared.
func TestCompareInterrupted(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	for _, c := range []struct {
		after     string // the line at which the run is interrupted
		want, not string
	}{
		{"custom  epoch 1/3", "nothing to compare yet: not every allocator has done an epoch\n", "losses"},
		{"malloc  epoch 1/3", "losses over 19 steps identical identical", "medians"},
		{"plan    epoch 2/3", "losses over 19 steps identical identical", "differ from"},
		{"plan    epoch 2/3", "one epoch each, the first, which pays for what is done once; too few epochs for an interval\n", "medians"},
		{"custom  epoch 2/3", "one epoch each, the second, interleaved; too few epochs for an interval\n", "medians"},
		{"epoch 3/3", "losses over 38 steps identical identical", "medians"},
	} {
		path, _ := writeConfig(t, "cpu", "")
		ctx, cancel := context.WithCancel(context.Background())
		stdout := &cancelAfter{text: c.after, cancel: cancel}
		var stderr bytes.Buffer
		code := runProcess(ctx, []string{"-compare", path}, stdout, &stderr)
		cancel()
		text := regexp.MustCompile(" +").ReplaceAllString(stdout.String(), " ")
		if code != exitInterrupted || !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
			t.Errorf("after %q: exit code %d, want %q and no %q in:\n%s%s", c.after, code, c.want, c.not, stdout, &stderr)
		}
	}
}

// TestOneEpoch must not call a single cold epoch a median.
func TestOneEpoch(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "")
	setConfig(t, path, "num_epochs = 3", "num_epochs = 1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{path}, " segments, the only epoch, which pays for what is done once:\n"},
		{[]string{"-compare", path}, "\none epoch each, the first, which pays for what is done once; too few epochs for an interval\n"},
	} {
		code, stdout, stderr := train(context.Background(), c.args...)
		if code != 0 || !strings.Contains(stdout, c.want) {
			t.Errorf("%q: exit code %d, %s, stdout:\n%s", c.args, code, stderr, stdout)
		}
	}
}

func TestAgreement(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		a, b []float32
		want string
	}{
		{nil, nil, "identical"},
		{[]float32{1, nan}, []float32{1, nan}, "identical"},
		{[]float32{1, 2, 3}, []float32{1, 2.5, 3}, "differ from step 2 on"},
		{[]float32{0}, []float32{float32(math.Copysign(0, -1))}, "differ from step 1 on"},
	} {
		if got := agreement(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %s, want %s", c.a, c.b, got, c.want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		values            []float64
		low, median, high float64
	}{
		{[]float64{7}, 7, 7, 7},
		{[]float64{4, 1}, 1, 2.5, 4},
		{[]float64{9, 1, 2}, 1, 2, 9},
		{[]float64{8, 1, 2, 4}, 1, 3, 8},
	} {
		var records []rundir.Record
		for _, v := range c.values {
			records = append(records, rundir.Record{TrainMS: v})
		}
		low, high := quantile(records, 0, rundir.Record.TotalMS), quantile(records, 1, rundir.Record.TotalMS)
		if got := median(records, rundir.Record.TotalMS); got != c.median || low != c.low || high != c.high {
			t.Errorf("%v: %v, %v and %v, want %v, %v and %v", c.values, low, got, high, c.low, c.median, c.high)
		}
	}
}
