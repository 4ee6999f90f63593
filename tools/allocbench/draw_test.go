package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/chart/charttest"
	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
)

const assets = "../../assets"

// TestAssets runs the commands in the README.md of assets, and compares the pictures with
// those in assets.
func TestAssets(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	dir := t.TempDir()
	for line := range strings.Lines(string(must.Read(t, filepath.Join(assets, "README.md")))) {
		if args, found := strings.CutPrefix(strings.TrimSpace(line), "go run ./tools/allocbench "); found {
			args = strings.NewReplacer("-plots assets/allocbench", "-plots "+dir, " assets/", " "+assets+"/").Replace(args)
			if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard, nullMachine); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	want, got := pictures(t, dir), pictures(t, filepath.Join(assets, "allocbench"))
	if len(want) == 0 || !slices.Equal(want, got) {
		t.Fatalf("the commands draw %q, there are %q", want, got)
	}
	for _, name := range want {
		now, kept := must.Read(t, filepath.Join(dir, name)), must.Read(t, filepath.Join(assets, "allocbench", name))
		if n := charttest.Differing(t, now, kept); n > 20 {
			t.Errorf("%s: %d pixels differ from assets: run the commands in assets/README.md again", name, n)
		}
	}
}

func pictures(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestDraw draws the rows that a selection names, and wants an error if it names none.
func TestDraw(t *testing.T) {
	figures := filepath.Join(t.TempDir(), "figures.csv")
	rows := []bench.Row{
		{Scenario: "pair", Case: "1 KiB", Allocator: "tlsf", Unit: "pair", Mean: 40},
		{Scenario: "pair", Case: "1 MiB", Allocator: "peer", Unit: "pair", Mean: 60},
		{Scenario: "churn", Case: "1 stream", Allocator: "tlsf", Unit: "pair", Mean: 50, PeakLive: 1 << 30, PeakReserved: 2 << 30},
		{Scenario: "churn", Case: "2 streams", Allocator: "tlsf", Unit: "pair", Mean: 50, PeakLive: 1 << 30, PeakReserved: 3 << 30},
		{Scenario: "random", Case: "1 stream", Allocator: "tlsf", Unit: "call", PeakLive: 1 << 30, PeakReserved: 1 << 30}, // level: no picture
		{Scenario: "live1000", Case: "all cold", Allocator: "tlsf", Unit: "call", Mean: 1},
	}
	write := func(path string, rows []bench.Row) {
		must.OK(t, draw.WriteFile(path, func(w io.Writer) error { return draw.WriteCSV(w, nil, rows) }))
	}
	write(figures, rows)
	other := filepath.Join(t.TempDir(), "other.csv")
	write(other, []bench.Row{{Scenario: "quine"}})
	for _, c := range []struct{ args, want, err string }{
		{"-draw " + figures, "churn_memory.png churn_time.png live1000_cold_time.png pair_time.png", ""},
		{"-scenario churn,live1000 -case stream -draw " + figures, "churn_memory.png churn_time.png", ""},
		{"-allocator peer -draw " + figures, "pair_time.png", ""},
		{"-scenario threads -draw " + figures, "", `figures.csv: no scenario "threads": there are pair, churn, random, live1000`},
		{"-allocator slab -draw " + figures, "", `figures.csv: no allocator "slab": there are tlsf, peer`},
		{"-case 9 -draw " + figures, "", `figures.csv: no case has "9" in its name`},
		{"-draw " + other, "", `other.csv: no scenario "quine"`},
	} {
		dir := t.TempDir()
		var out bytes.Buffer
		err := run(t.Context(), append(strings.Fields(c.args), "-plots", dir), &out, io.Discard, nil)
		if err == nil && c.err != "" || err != nil && (c.err == "" || !strings.HasSuffix(err.Error(), c.err)) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.err)
		}
		if got := strings.Join(pictures(t, dir), " "); got != c.want {
			t.Errorf("%s: drew %s, want %s", c.args, got, c.want)
		}
		said := strings.Fields(strings.ReplaceAll(out.String(), dir+string(filepath.Separator), ""))
		if slices.Sort(said); strings.Join(said, " ") != c.want {
			t.Errorf("%s: said %q, want %s", c.args, out.String(), c.want)
		}
	}
}
