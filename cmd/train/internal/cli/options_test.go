package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/run"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// runDir returns a folder that looks like that of a run.
func runDir(t *testing.T, marker string) string {
	t.Helper()
	dir := t.TempDir()
	traintest.Write(t, filepath.Join(dir, marker), `{"status": "done"}`)
	return dir
}

// untilOf returns the target for a value of -until.
func untilOf(value string) (t compare.Target) {
	_ = t.Set(value) // what is not valid differs from what is expected
	return t
}

func TestParseArgs(t *testing.T) {
	one, two := runDir(t, "run.json"), runDir(t, "comparison.json")
	for _, c := range []struct {
		args []string
		want Options
	}{
		{[]string{"a.toml"}, Options{config: "a.toml"}},
		{[]string{"-"}, Options{config: "-"}},
		{[]string{"-set", "train.bsz=1", "a.toml", "-set=train.seed=2"}, Options{config: "a.toml", Set: []string{"train.bsz=1", "train.seed=2"}}},
		{[]string{"-compare", "a.toml"}, Options{config: "a.toml", Options: run.Options{Compare: true}}},
		{[]string{"a.toml", "-compare=custom,custom:slab"}, Options{config: "a.toml", Options: run.Options{Compare: true, Among: []string{"custom", "custom:slab"}}}},
		{[]string{"-compare=false", "a.toml"}, Options{config: "a.toml"}},
		{[]string{"-compare=false", "-resume", one}, Options{resume: one}},
		{[]string{"-list", "-json=false", "-check=false"}, Options{list: true}},
		{[]string{"-check", "a.toml"}, Options{config: "a.toml", Options: run.Options{Check: true}}},
		{[]string{"-data"}, Options{Data: true}},
		{[]string{"-data", "a.toml"}, Options{config: "a.toml", Data: true}},
		{[]string{"-list"}, Options{list: true}},
		{[]string{"-version"}, Options{version: true}},
		{[]string{"-completion", "zsh"}, Options{completion: "zsh"}},
		{[]string{"-export", "d", "a.toml"}, Options{config: "a.toml", Options: run.Options{Export: "d"}}},
		{[]string{"-resume", one}, Options{resume: one}},
		{[]string{"-resume", one, "-report", "r.html"}, Options{resume: one, Options: run.Options{Report: "r.html"}}},
		{[]string{"-resume", one, "-data"}, Options{resume: one, Data: true}},
		{[]string{"-check", "-compare", "-csv", "t.csv", "a.toml"}, Options{config: "a.toml", Options: run.Options{Check: true, Compare: true, CSV: "t.csv"}}},
		{[]string{"-compare", "-until", "1%", "-check", "a.toml"}, Options{config: "a.toml", Options: run.Options{Check: true, Compare: true, Until: untilOf("1%")}}},
		{[]string{"-report", "r.html", "a.toml"}, Options{config: "a.toml", Options: run.Options{Report: "r.html"}}},
		{[]string{one, "-report", "r.html", two}, Options{Runs: []string{one, two}, Options: run.Options{Report: "r.html"}}},
		{[]string{"-predict", "i.png", one}, Options{Runs: []string{one}, Predict: []string{"i.png"}}},
		{[]string{"-predict", "test", "-set", "train.seed=1", one}, Options{Runs: []string{one}, Predict: []string{"test"}, Set: []string{"train.seed=1"}}},
		{[]string{"-predict", "i.png", "elsewhere"}, Options{Runs: []string{"elsewhere"}, Predict: []string{"i.png"}}},
	} {
		var stdout strings.Builder
		if got, err := Parse(c.args, &stdout); err != nil || !reflect.DeepEqual(got, c.want) || stdout.Len() > 0 {
			t.Errorf("%q: got %+v, %v, %s\nwant %+v", c.args, got, err, &stdout, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	one, two := runDir(t, "run.json"), runDir(t, "comparison.json")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "which config? try: train configs/mnist.toml"},
		{[]string{"-check"}, "which config?"},
		{[]string{"-report", "r.html"}, "which config?"},
		{[]string{"a.toml", "b.toml"}, "one config at a time: a.toml or b.toml?"},
		{[]string{"-compare", "custom,custom:slab", "a.toml"}, "-compare takes its list after an equals sign: train -compare=custom,custom:slab a.toml"},
		{[]string{"-compare", "a.toml", "custom"}, "one config at a time: a.toml or custom?"},
		{[]string{one}, one + " is the folder of a run: train -report, -resume and -predict take one"},
		{[]string{"-report", "r.html", "a.toml", one}, "leave " + one + " or a.toml out"},
		{[]string{"-resume", one, "a.toml"}, "-resume takes the config of its run: leave a.toml out, and change keys with -set"},
		{[]string{"-predict", "i.png"}, "-predict takes the folder of one run, not 0: train -predict i.png "},
		{[]string{"-predict", "i.png", one, two}, "-predict takes the folder of one run, not 2"},
		{[]string{"-list", "-version"}, "-list and -version do not go together: leave one out"},
		{[]string{"-version", "-json"}, "-version and -json do not go together"},
		{[]string{"-predict", "test", "-report", "r.html", one}, "-predict and -report do not go together"},
		{[]string{"-predict", "test", "-resume", one}, "-predict and -resume do not go together"},
		{[]string{"-report", "r.html", "-csv", "t.csv", one}, "-report of earlier runs and -csv do not go together"},
		{[]string{"-report", "r.html", "-set", "train.bsz=1", one}, "-report of earlier runs and -set do not go together"},
		{[]string{"-data", "-compare", "a.toml"}, "-data and -compare do not go together"},
		{[]string{"-check", "-export", "d", "a.toml"}, "-export and -check do not go together"},
		{[]string{"-export", "d", "-resume", one}, "-export and -resume do not go together"},
		{[]string{"-resume", one, "-compare"}, "-resume continues one run: leave -compare out, and choose the allocator with ALLOCATOR_TYPE"},
		{[]string{"-list", "a.toml"}, "what is a.toml for?"},
		{[]string{"-completion", "tcsh"}, "want bash or zsh or fish"},
		{[]string{"-set"}, "-set"},
		{[]string{"-resume", "", "a.toml"}, `invalid value "" for flag -resume: want the name of a file or folder`},
		{[]string{"-export", "", "a.toml"}, `invalid value "" for flag -export: want the name of a file or folder`},
		{[]string{"-csv=", "a.toml"}, `invalid value "" for flag -csv: want the name of a file or folder`},
		{[]string{"-predict", "", one}, `invalid value "" for flag -predict: want the name of a file or folder`},
		{[]string{"-resum", one}, "unknown flag -resum, did you mean -resume? train -help lists all"},
		{[]string{"--report=x", "--chek", "a.toml"}, "unknown flag -chek, did you mean -check?"},
		{[]string{"-epochs", "3", "a.toml"}, "unknown flag -epochs: train -help lists all"},
		{[]string{"-set", "nope", "a.toml"}, "-set nope: want KEY=VALUE"},
		{[]string{"-set", "lr=1", "a.toml"}, "-set lr: unknown key, did you mean train.learning_rate?"},
		{[]string{"-set", "train.bsz=0", "a.toml"}, "-set train.bsz: is 0, want an integer"},
		{[]string{"-compare=bogus", "a.toml"}, `-compare=bogus: "bogus" is not an allocator: use one of custom, `},
		{[]string{"-compare=custom,custom:bogus", "a.toml"}, `-compare=custom:bogus: "bogus" is not a strategy: use one of tlsf, `},
		{[]string{"-predict", "i.png", "-set", "train.seed=1", one}, "-set is for -predict test, which takes its data from the config: leave it out"},
		{[]string{"-check", "-json", "a.toml"}, "-check and -json do not go together"},
		{[]string{"-compare=malocc", "a.toml"}, ": did you mean malloc?"},
		{[]string{"-until", "1%", "a.toml"}, "add -compare"},
		{[]string{"-until", "1%", "-resume", "logs"}, "add -compare"},
		{[]string{"-until", "1%", "-compare=false", "a.toml"}, "add -compare"},
		{[]string{"-until", "0%", "-compare", "a.toml"}, "want a percentage above 0"},
		{[]string{"-compare", "-until", "1%", "-export", "out", "a.toml"}, "do not go together"},
		{[]string{"-data", ""}, "the name of a config, or of a run, is empty"},
		{[]string{"-report", "-", "a.toml"}, `invalid value "-" for flag -report: want a file name; for standard input or output use /dev/stdin or /dev/stdout`},
		{[]string{"-csv", "-", "a.toml"}, `invalid value "-" for flag -csv: want a file name; for standard input or output use /dev/stdin or /dev/stdout`},
	} {
		var stdout strings.Builder
		if _, err := Parse(c.args, &stdout); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || stdout.Len() > 0 {
			t.Errorf("%q: %s, got %v, want %s", c.args, &stdout, err, c.want)
		}
	}
}

// TestUsage has every flag once.
func TestUsage(t *testing.T) {
	var out strings.Builder
	if _, err := Parse([]string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	stdout := out.String()
	if !strings.HasPrefix(stdout, "usage: train [flags] <config>\n") {
		t.Error(stdout)
	}
	_, groups := new(Options).define()
	for _, g := range groups {
		for _, f := range g.flags {
			if n := strings.Count(stdout, "\n  -"+f.Name+" ") + strings.Count(stdout, "\n  -"+f.Name+"["); n != 1 {
				t.Errorf("-%s stands there %d times", f.Name, n)
			}
		}
	}
}

func TestList(t *testing.T) {
	for _, c := range []struct {
		noGPU error
		want  int
	}{{nil, 0}, {fmt.Errorf("no GPU"), 1}} {
		var b strings.Builder
		if err := printList(&b, c.noGPU); err != nil || strings.Count(strings.Join(strings.Fields(b.String()), " "), "; not here: no GPU") != c.want {
			t.Errorf("%v: %v,\n%s", c.noGPU, err, &b)
		}
		for _, name := range append(backend.AllKinds[:len(backend.AllKinds):len(backend.AllKinds)], "tlsf", "buddy", "slab") {
			if strings.Count(b.String(), "\n  "+name+" ") != 1 {
				t.Errorf("%s does not stand there once:\n%s", name, &b)
			}
		}
	}
}

// TestConfigOnce reads a config that can be read only once.
func TestConfigOnce(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	o := Options{config: path}
	_, first, err := o.Read(context.Background())
	must.OK(t, errors.Join(err, os.Remove(path)))
	if _, again, err := o.Read(context.Background()); err != nil || !reflect.DeepEqual(first, again) {
		t.Errorf("%+v, %v, want %+v", again, err, first)
	}
}
