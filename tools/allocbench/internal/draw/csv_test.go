package draw

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
)

func TestCSV(t *testing.T) {
	nan := math.NaN()
	rows := []bench.Row{
		{
			Scenario: "pair", Case: "64 KiB", Allocator: "tlsf", Unit: "pair", Ops: 1000, Runs: 5, Mean: 30.25, P50: 28, P99: 40, P999: 90, PerSecond: 3.25e7,
			PeakLive: 65536, PeakReserved: 2097152, HostWaits: 1.5, Least: 28.5, Most: 36.25, Ranks: 2,
		},
		{
			Scenario: "random", Case: `a, "b"`, Allocator: "none", Unit: "call", Ops: 1, Runs: 1, Mean: 1e-3, P50: nan, P99: nan, P999: nan, PerSecond: 2,
			Failed: 7, DriverCalls: 2.5, GoAllocs: 0.125, Cut: true, HostWaits: nan, Least: nan, Most: nan,
		},
	}
	var b bytes.Buffer
	must.OK(t, WriteCSV(&b, []string{"a machine", "two\nlines"}, rows))
	if !strings.HasPrefix(b.String(), "# a machine\n# two lines\nscenario,case,allocator,") {
		t.Error(b.String())
	}
	plain := csv.NewReader(bytes.NewReader(b.Bytes()))
	plain.Comment = '#'
	if records, err := plain.ReadAll(); err != nil || len(records) != 3 {
		t.Errorf("%d records, error %v", len(records), err)
	}
	text := b.String()
	notes, back, err := readCSV(text)
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
		if _, _, err := readCSV(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", bad, err, want)
		}
	}
}
