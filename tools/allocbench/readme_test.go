package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
	"mlpool/tools/allocbench/internal/replay"
)

// A comparison is a CSV with the figures of three traces, the arguments of the command that wrote it, and a README with
// another table.
type comparison struct {
	t           *testing.T
	csv, readme string
	args        []string
}

const readmeText = "# A\n\n" + draw.TableBegin + "| old |\n" + draw.TableEnd + "\n## B\n"

func newComparison(t *testing.T, more ...string) comparison {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"traces/trainer/784x64-fused.csv": header + "0,0,allocate,0x1,1000,0\n0,0,allocate,0x2,3000000,0\n0,0,free,0x2,3000000,0\n",
		"traces/trainer/wide.csv":         header + "0,0,allocate,0x1,5000000,0\n0,0,free,0x1,5000000,0\n",
		"traces/job-expandable.csv":       header + "0,0,allocate,0x1,7000000,0\n",
		"traces/same.csv":                 "# as above\n" + header + "1,1,allocate,0x3,7000000,2\n",
		"traces/summary.txt":              "no trace",
		"README.md":                       readmeText,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.OK(t, os.WriteFile(path, []byte(text), 0o666))
	}
	c := comparison{t, filepath.Join(dir, "kept.csv"), filepath.Join(dir, "README.md"), nil}
	c.args = []string{"-quick", "-runs", "1", "-traces", filepath.Join(dir, "traces"), "-csv", c.csv}
	c.args = append(c.args, more...)
	must.OK(t, c.run())
	return c
}

func (c comparison) run(more ...string) error {
	return run(c.t.Context(), append(slices.Clone(c.args), more...), io.Discard, io.Discard, nullMachine)
}

func (c comparison) replace(path, old, new string) {
	c.t.Helper()
	text := string(must.Read(c.t, path))
	if !strings.Contains(text, old) {
		c.t.Fatalf("%s has no %q:\n%s", path, old, text)
	}
	must.OK(c.t, os.WriteFile(path, []byte(strings.ReplaceAll(text, old, new)), 0o666))
}

// TestTraces replays a folder. The name of a trace includes its folder, and a trace with the
// requests of another one is left out.
func TestTraces(t *testing.T) {
	c := newComparison(t)
	_, rows, err := draw.ReadFigures(c.csv)
	must.OK(t, err)
	var cases, allocators []string
	for _, r := range rows {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		if !slices.Contains(allocators, r.Allocator) {
			allocators = append(allocators, r.Allocator)
		}
	}
	if want := []string{"job-expandable cold", "job-expandable warm", "trainer/784x64-fused cold", "trainer/784x64-fused warm",
		"trainer/wide cold", "trainer/wide warm"}; !slices.Equal(cases, want) {
		t.Errorf("cases %q, want %q", cases, want)
	}
	for _, s := range append(allocator.Strategies(), "slack 1/64", "torch", "torch-expandable") {
		if !slices.Contains(allocators, s) {
			t.Errorf("%s is not compared", s)
		}
	}
	if slices.Contains(allocators, bench.OnGPU) || slices.Contains(allocators, "malloc") {
		t.Errorf("compared without a GPU: %q", allocators)
	}
	must.OK(t, c.run("-allocator", "malloc", "-scenario", "live1000"))
	if _, rows, err = draw.ReadFigures(c.csv); err != nil || len(rows) != 8 || rows[0].Allocator != "malloc" {
		t.Errorf("%d rows, error %v", len(rows), err)
	}
}

// TestReadme checks the text between the marks and around them.
func TestReadme(t *testing.T) {
	c := newComparison(t)
	must.OK(t, c.run("-quick=false", "-limit", "300ms", "-readme", c.readme))
	text := string(must.Read(t, c.readme))
	if want := "# A\n\n" + draw.TableBegin + "| strategy | ns a call | training | worst of 2 trainings | median of 1 jobs | worst of them | pick it when |\n|---|---|---|---|---|---|---|\n| `tlsf` | "; !strings.HasPrefix(text, want) {
		t.Errorf("does not begin with %q:\n%s", want, text)
	}
	if !strings.HasSuffix(text, "|\n"+draw.TableEnd+"\n## B\n") || strings.Contains(text, "old") {
		t.Error(text)
	}
	if row := "| `ALLOCATOR_TYPE=cuda` |"; strings.Contains(text, row) {
		t.Errorf("has %s without a GPU", row)
	}
	if want := "| PyTorch's, `expandable_segments` | – | "; !strings.Contains(text, want) {
		t.Errorf("has no %q: %s", want, text)
	}
}

// TestCheck changes the kept files. -check must report differences of memory, and ignore times.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(comparison)
		want   string // "": no error
	}{
		{"nothing", func(comparison) {}, ""},
		{"the README's text", func(c comparison) { c.replace(c.readme, "# A", "# C") }, ""},
		{"live bytes", func(c comparison) { c.replace(c.csv, ",7000000,", ",7000001,") }, "job-expandable cold, tlsf reserves "},
		{"an old allocator", func(c comparison) {
			c.replace(c.csv, "replay,", "replay,job-expandable cold,hoard,call,1,1,1,,,,1,7000000,7000000,0,1,0,false,,,,\nreplay,")
		}, "job-expandable cold, hoard is no longer measured"},
		{"a new trace", func(c comparison) { c.replace(c.csv, "wide", "narrow") },
			"trainer/wide cold, tlsf is not in it; trainer/wide cold, slab is not in it; trainer/wide warm, tlsf is not in it; and 5 more: run"},
		{"the README's figures", func(c comparison) { c.replace(c.readme, "| `slab` |", "| `slab` | 1") }, "README.md: its table is not that of the figures"},
		{"the README's marks", func(c comparison) { c.replace(c.readme, draw.TableEnd, "") }, "README.md: has no line"},
		{"the README", func(c comparison) { must.OK(t, os.Remove(c.readme)) }, "no such file"},
		{"the CSV", func(c comparison) { must.OK(t, os.Remove(c.csv)) }, "no such file"},
	} {
		c := newComparison(t, "-allocator", "tlsf,slab")
		_, rows, err := draw.ReadFigures(c.csv)
		must.OK(t, err, draw.WriteReadme(c.readme, rows, false))
		tt.change(c)
		contents := func() [2]string {
			csv, _ := os.ReadFile(c.csv) // one of them may not exist
			readme, _ := os.ReadFile(c.readme)
			return [2]string{string(csv), string(readme)}
		}
		before := contents()
		err = c.run("-check", "-readme", c.readme)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
		if contents() != before {
			t.Errorf("%s: -check wrote", tt.name)
		}
	}
}

// TestCheckOfSlowCalls checks a time that has more digits in the table than in the CSV.
func TestCheckOfSlowCalls(t *testing.T) {
	dir := t.TempDir()
	o := options{csv: filepath.Join(dir, "rows.csv"), readme: filepath.Join(dir, "README.md")}
	must.OK(t, os.WriteFile(o.readme, []byte(draw.TableBegin+draw.TableEnd), 0o666))
	rows := []bench.Row{{Scenario: replay.Name, Case: draw.DefaultTraining + " warm", Allocator: "tlsf", Mean: 1234567.8, PeakLive: 1, PeakReserved: 1}}
	must.OK(t, o.write(nil, nil, rows, true))
	o.check = true
	must.OK(t, o.write(nil, nil, rows, true))
}
