package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

func TestUntilFlag(t *testing.T) {
	for _, c := range []struct {
		value string
		want  target // zero: not valid
	}{
		{"1%", target{1, 0}}, {"0.5 %", target{0.5, 0}}, {"2", target{2, 0}}, {"1%,200", target{1, 200}}, {"1%, 7", target{1, 7}},
		{"", target{}}, {"0%", target{}}, {"-1%", target{}}, {"100%", target{}}, {"NaN", target{}}, {"x", target{}}, {"1%,", target{}}, {"1%,6", target{}}, {"1%,x", target{}}, {",9", target{}},
	} {
		o, err := parseArgs([]string{"-compare", "-until", c.value, "x.toml"}, &bytes.Buffer{})
		if valid := c.want != (target{}); (err == nil) != valid || valid && o.until != c.want {
			t.Errorf("%q: %+v, %v", c.value, o.until, err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-until", "1%", "x.toml"}, "add -compare"},
		{[]string{"-until", "1%", "-resume", "logs"}, "add -compare"},
		{[]string{"-until", "1%", "-compare=false", "x.toml"}, "add -compare"},
		{[]string{"-compare", "-until", "1%", "-export", "out", "x.toml"}, "do not go together"},
		{[]string{"-compare", "-until", "1%", "-check", "x.toml"}, ""},
	} {
		_, err := parseArgs(c.args, &bytes.Buffer{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
	var cfg configs.Config
	for _, c := range []struct {
		until        target
		epochs, want int // want 0: an error
	}{{target{}, 10, 10}, {target{1, 0}, 10, 100}, {target{1, 0}, 150, 150}, {target{1, 20}, 10, 20}, {target{1, 20}, 21, 0}} {
		cfg.Train.NumEpochs = c.epochs
		if got, err := c.until.bound(cfg); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%+v with %d epochs: %d, %v", c.until, c.epochs, got, err)
		}
	}
}

// TestUntil trains until the bound, since no measurement is as precise as is asked for.
func TestUntil(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "")
	code, stdout, stderr := train(context.Background(), "-compare=custom,malloc", "-until", "0.000001%,8", "-json", path)
	var got results
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v in:\n%s\nstderr:\n%s", code, err, stdout, stderr)
	}
	for _, r := range got.Runs {
		if r.Status != rundir.Done || r.Epochs != 8 || r.Figures.Epochs != 7 {
			t.Errorf("%s: %s after %d epochs, figures of %d", r.Name, r.Status, r.Epochs, r.Figures.Epochs)
		}
	}
	if !strings.Contains(stderr, "epoch 4/8 ") || !strings.Contains(stderr, ", and -until asks for 1e-06 %\n") {
		t.Errorf("stderr:\n%s", stderr)
	}
	if code, _, stderr := train(context.Background(), "-resume", got.Runs[0].Folder); code != exitFailure || !strings.Contains(stderr, "has done 8: go on with -set train.num_epochs=16") {
		t.Errorf("resumed beyond num_epochs: exit code %d, %s", code, stderr)
	}
	setConfig(t, path, "num_epochs = 3", "num_epochs = 9")
	for _, args := range [][]string{{}, {"-check"}} {
		code, _, stderr := train(context.Background(), append(args, "-compare=custom,malloc", "-until", "1%,8", path)...)
		if code != exitFailure || !strings.Contains(stderr, "num_epochs") {
			t.Errorf("%q: a bound below num_epochs: exit code %d, %s", args, code, stderr)
		}
	}
}

// TestPrecise ends a comparison at num_epochs at the earliest, and when all intervals are narrow.
func TestPrecise(t *testing.T) {
	s := comparisonOf([]string{"custom", "plan", "cuda"}, [][]float64{
		{40, 41, 40, 42, 40, 41, 40, 41},
		{40, 41, 40, 42, 40, 41, 40, 41},
		{50, 52, 50, 52, 50, 51, 50, 53}, // up to 4 % off the median ratio
	})
	s.cfg.Train.NumEpochs = 9
	for _, c := range []struct {
		percent float64
		epochs  int
		want    bool
	}{{0, 9, false}, {5, 8, false}, {5, 9, true}, {0.1, 9, false}} {
		s.until.percent = c.percent
		if got := s.precise(c.epochs); got != c.want {
			t.Errorf("%v %% after %d epochs: %v, and the margin is %v %%", c.percent, c.epochs, got, s.results().margin())
		}
	}
	for i := range s.runners { // five pairs
		s.runners[i].records = s.runners[i].records[:6]
	}
	s.until.percent, s.cfg.Train.NumEpochs = 50, 3
	if s.precise(6) {
		t.Error("five pairs are precise")
	}
}
