package configs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// sameValues reports whether two configs are alike, wherever they are from.
func sameValues(a, b Config) bool {
	a.name, a.places = "", nil
	b.name, b.places = "", nil
	return reflect.DeepEqual(a, b)
}

func TestTOML(t *testing.T) {
	odd := Default()
	odd.Train.LearningRate = 1e-38
	odd.Train.Seed = 1<<63 - 1
	odd.Allocator.GcThreshold = 1
	odd.Allocator.MaxFraction = 1e-9
	odd.Allocator.Trace = "a \"b\"\\\n\t'''.csv"
	odd.Data.DataDir = "\x7f\u2028é\x00"
	for _, c := range []Config{Default(), odd} {
		text := c.TOML()
		got, err := Parse("t.toml", text)
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		} else if !sameValues(got, c) {
			t.Errorf("got  %+v\nwant %+v", got, c)
		} else if len(got.places) != len(keys) {
			t.Errorf("%d keys of %d are set in\n%s", len(got.places), len(keys), text)
		}
	}
	var order []string
	section := ""
	for line := range strings.Lines(string(Default().TOML())) {
		if name, isSection := strings.CutPrefix(line, "["); isSection {
			section = strings.TrimRight(name, "]\n")
		} else if name, _, isKey := strings.Cut(line, " = "); isKey {
			order = append(order, section+"."+name)
		}
	}
	if !reflect.DeepEqual(order, Keys()) {
		t.Errorf("got the order\n%q, want\n%q", order, Keys())
	}
}

func TestValues(t *testing.T) {
	for name, want := range map[string]string{"train.executor": "[eager graph]", "train.fuse": "[true false]", "train.bsz": "[]", "no.key": "[]"} {
		if got := fmt.Sprint(Values(name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
