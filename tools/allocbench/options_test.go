package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
)

func TestList(t *testing.T) {
	var out bytes.Buffer
	must.OK(t, run(t.Context(), []string{"-list"}, &out, io.Discard, nil))
	for _, s := range bench.Scenarios() {
		if !strings.Contains(out.String(), "\n  "+s.Name+" ") {
			t.Errorf("scenario %s is not listed", s.Name)
		}
	}
	for _, name := range append(allocator.Strategies(), bench.MallocSegments, "cuda", "malloc") {
		if !strings.Contains(out.String(), "\n  "+name+" ") {
			t.Errorf("allocator %s is not listed", name)
		}
	}
}

// A badFlags is a command line and a part of its error.
type badFlags struct{ args, want string }

// check runs the command, which must fail before it measures.
func (c badFlags) check(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), strings.Fields(c.args), &out, io.Discard, nullMachine)
	if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: error %v, want %q", c.args, err, c.want)
	}
	if strings.Contains(out.String(), "pair") {
		t.Errorf("%s: measures before it fails: %s", c.args, out.String())
	}
}

// TestOverwrite names an input, or another output, as an output.
func TestOverwrite(t *testing.T) {
	below := t.TempDir()
	trace, figures := filepath.Join(below, "trace.csv"), filepath.Join(t.TempDir(), "figures.csv")
	const text = "Thread,Time,Action,Pointer,Size,Stream\n"
	for _, path := range []string{trace, figures} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o666))
	}
	for _, c := range []badFlags{
		{"-trace " + trace + " -csv " + trace, "trace.csv: is a file of -trace as well, and would be overwritten"},
		{"-trace " + trace + " -report " + trace, "trace.csv: is a file of -trace as well"},
		{"-trace " + trace + " -export-rmm " + below + "/../" + filepath.Base(below) + "/trace.csv", "trace.csv: is a file of -trace as well"},
		{"-traces " + below + " -csv " + trace, "trace.csv: is a file of -traces as well"},
		{"-trace " + trace + " -csv " + figures + " -report " + figures, "figures.csv: is a file of -report as well"},
		{"-trace " + trace + " -check -csv " + figures + " -report " + figures, "figures.csv: is a file of -csv as well"},
	} {
		c.check(t)
	}
	for _, path := range []string{trace, figures} {
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s was overwritten with %q, error %v", path, got, err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	dir, figures := t.TempDir(), filepath.Join(t.TempDir(), "figures.csv")
	must.OK(t, os.WriteFile(figures, nil, 0o666))
	for _, c := range []badFlags{
		{"-trace x.csv -export-rmm new.csv -csv other.csv", "-csv has no effect with -export-rmm"},
		{"-draw " + figures + " -plots " + dir + " -trace x.csv", "-trace has no effect with -draw"},
		{"-trace x.csv -since y.csv -csv other.csv", "-csv has no effect with -since"},
		{"-scenario pair -csv " + dir, "is a directory"},
		{"-scenario pair -csv " + figures + "/x.csv", "not a directory"},
		{"-trace " + snapshot + " -report " + figures + "/x.html", "not a directory"},
		{"-scenario pair -plots " + figures, "not a directory"},
		{"-speed", "flag provided but not defined: -speed; see allocbench -h"},
		{"all", `"all" is not a flag; see allocbench -h`},
		{"-runs 0", "-runs is 1 or more, not 0"},
		{"-limit 0s", "-limit is more than 0, not 0s"},
		{"-scenario pear", `no scenario "pear": there are pair, `},
		{"-scenario par", "multi_stream, replay, allreduce"},
		{"-scenario par -trace " + snapshot, "multi_stream, replay, allreduce"},
		{"-scenario pair,allreduce", "scenario allreduce is measured alone: name no other, and no trace"},
		{"-scenario pair,", `no scenario "": there are pair, `},
		{"-allocator tlsf,x", `no allocator "x": there are tlsf, `},
		{"-scenario replay", "scenario replay needs -trace or -traces"},
		{"-trace x.csv -traces " + dir, "-trace or -traces: one at a time"},
		{"-traces " + dir + "/none", "no such file"},
		{"-traces " + dir, dir + ": has no CSV of a trace"},
		{"-report x.html", "-report needs -trace"},
		{"-since x.csv", "-since needs -trace"},
		{"-readme x.md", "-readme needs -traces"},
		{"-readme x.md -quick -traces " + dir, "-readme writes the whole table: leave out -quick, -allocator and -case"},
		{"-readme x.md -allocator tlsf -traces " + dir, "-readme writes the whole table"},
		{"-readme x.md -case cold -traces " + dir, "-readme writes the whole table"},
		{"-check", "-check needs -csv"},
		{"-draw x.csv", "-draw needs -plots"},
		{"-draw " + dir + "/none.csv -plots " + dir, "no such file"},
		{"-trace " + dir + "/none.csv", "no such file"},
		{"-trace " + dir, dir + " is a folder: name a file in it, or take -traces for all of them"},
		{"-export-rmm " + dir + "/x.csv -trace " + dir, " is a folder: name a file in it"},
		{"-cards", "-cards needs -trace or -traces"},
		{"-scenario allreduce", "mpirun -np 2 allocbench -scenario allreduce"},
		{"-export-rmm " + dir + "/x.csv", "-export-rmm needs -trace"},
		{"-export-rmm " + dir + " -trace " + snapshot, "is a directory"},
		{"-trace " + snapshot + " -trace-device 2", "snapshot4.pickle: has no device 2: there are 0 to 1"},
		{"-quick -case zzz", `no case has "zzz" in its name`},
	} {
		c.check(t)
	}
}

func TestHelp(t *testing.T) {
	var help bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, io.Discard, &help, nil); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-allocator list") {
		t.Errorf("error %v, help %s", err, help.String())
	}
}

// TestNarrow prints on a terminal of 80 columns. Only a single word may be longer.
func TestNarrow(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "page.html")
	for _, args := range [][]string{{"-help"}, {"-list"}, {"-trace", trace, "-cards"}, {"-trace", trace, "-quick", "-report", page}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out, nullMachine); err != nil && !errors.Is(err, flag.ErrHelp) {
			t.Fatal(err)
		}
		if out.Len() == 0 {
			t.Errorf("%q prints nothing", args)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%q: %d columns: %s", args, n, line)
			}
		}
	}
}
