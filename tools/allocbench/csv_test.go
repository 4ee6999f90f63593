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
	ok(t, writeCSV(&b, []string{"a machine", "two\nlines"}, rows))
	if !strings.HasPrefix(b.String(), "# a machine\n# two lines\nscenario,case,allocator,") {
		t.Error(b.String())
	}
	plain := csv.NewReader(bytes.NewReader(b.Bytes()))
	plain.Comment = '#'
	if records, err := plain.ReadAll(); err != nil || len(records) != 3 {
		t.Errorf("%d records, error %v", len(records), err)
	}
	notes, back, err := readCSV(&b)
	ok(t, err)
	if got, want := fmt.Sprint(back), fmt.Sprint(rows); got != want { // a NaN equals no other
		t.Errorf("read %s\nwrote %s", got, want)
	}
	if !slices.Equal(notes, []string{"a machine", "two lines"}) {
		t.Errorf("notes %q", notes)
	}
	for text, want := range map[string]string{
		"":      "is empty",
		"a,b\n": "has 2 columns, not 21",
		strings.Replace(csvText(t, rows), "mean_ns", "mean", 1): `column 7 is "mean", not "mean_ns"`,
		strings.Replace(csvText(t, rows), "30.25", "x", 1):      "row 1: mean_ns",
		strings.Replace(csvText(t, rows), "36.25", "x", 1):      "row 1: most_ns",
	} {
		if _, _, err := readCSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestUnknownReserved: without a GPU, what cuda's pool reserves is unknown.
func TestUnknownReserved(t *testing.T) {
	out, rows := benchRows(t, nullMachine, "-quick", "-runs", "1", "-scenario", "pair", "-allocator", "tlsf,cuda,none")
	if len(rows) == 0 || strings.Contains(out, " 0.000 ") {
		t.Errorf("%d rows\n%s", len(rows), out)
	}
	text := csv.NewReader(strings.NewReader(csvText(t, rows)))
	records, err := text.ReadAll()
	ok(t, err)
	at := slices.Index(records[0], "peak_reserved_bytes")
	for i, r := range rows {
		if cell, known := records[i+1][at], r.Allocator == "tlsf"; (cell != "") != known || cell == "0" {
			t.Errorf("%s: reserved %q", r.Allocator, cell)
		}
	}
}

func csvText(t *testing.T, rows []row) string {
	var b strings.Builder
	ok(t, writeCSV(&b, nil, rows))
	return b.String()
}
