package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestCSV(t *testing.T) {
	nan := math.NaN()
	rows := []row{
		{"pair", "64 KiB", "tlsf", "pair", 1000, 5, 30.25, 28, 40, 90, 3.25e7, 65536, 2097152, 0, 0, 0, false, 1.5, 28.5, 36.25, 2},
		{"random", `a, "b"`, "none", "call", 1, 1, 1e-3, nan, nan, nan, 2, 0, 0, 7, 2.5, 0.125, true, nan, nan, nan, 0},
	}
	var b bytes.Buffer
	if err := writeCSV(&b, []string{"a machine", "two\nlines"}, rows); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "# a machine\n# two lines\nscenario,case,allocator,") {
		t.Error(b.String())
	}
	plain := csv.NewReader(bytes.NewReader(b.Bytes()))
	plain.Comment = '#'
	if records, err := plain.ReadAll(); err != nil || len(records) != 3 {
		t.Errorf("%d records, error %v", len(records), err)
	}
	text := b.String()
	notes, back, err := readCSV(&b)
	if got, want := fmt.Sprint(back), fmt.Sprint(rows); err != nil || got != want { // a NaN equals no other
		t.Errorf("error %v, read %s\nwrote %s", err, got, want)
	}
	if !slices.Equal(notes, []string{"a machine", "two lines"}) {
		t.Errorf("notes %q", notes)
	}
	for bad, want := range map[string]string{
		"":      "is empty",
		"a,b\n": "has 2 columns, not 21",
		strings.Replace(text, "mean_ns", "mean", 1): `column 7 is "mean", not "mean_ns"`,
		strings.Replace(text, "30.25", "x", 1):      "row 1: mean_ns",
		strings.Replace(text, "36.25", "x", 1):      "row 1: most_ns",
	} {
		if _, _, err := readCSV(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", bad, err, want)
		}
	}
}
