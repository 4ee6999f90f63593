package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

// runDir makes a folder that passes for that of a run.
func runDir(t *testing.T, marker string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, marker), []byte(`{"status": "done"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestParseArgs(t *testing.T) {
	one, two := runDir(t, "run.json"), runDir(t, "comparison.json")
	for _, c := range []struct {
		args []string
		want options
	}{
		{[]string{"a.toml"}, options{config: "a.toml"}},
		{[]string{"-"}, options{config: "-"}},
		{[]string{"-set", "train.bsz=1", "a.toml", "-set=train.seed=2"}, options{config: "a.toml", set: []string{"train.bsz=1", "train.seed=2"}}},
		{[]string{"-compare", "a.toml"}, options{config: "a.toml", runOptions: runOptions{compare: true}}},
		{[]string{"a.toml", "-compare=custom,plan:slab"}, options{config: "a.toml", runOptions: runOptions{compare: true, among: []string{"custom", "plan:slab"}}}},
		{[]string{"-compare=false", "a.toml"}, options{config: "a.toml"}},
		{[]string{"-compare=false", "-resume", one}, options{resume: one}},
		{[]string{"-list", "-json=false", "-check=false"}, options{list: true}},
		{[]string{"-check", "a.toml"}, options{config: "a.toml", runOptions: runOptions{check: true}}},
		{[]string{"-data"}, options{data: true}},
		{[]string{"-data", "a.toml"}, options{config: "a.toml", data: true}},
		{[]string{"-list"}, options{list: true}},
		{[]string{"-version"}, options{version: true}},
		{[]string{"-completion", "zsh"}, options{completion: "zsh"}},
		{[]string{"-export", "d", "a.toml"}, options{config: "a.toml", runOptions: runOptions{export: "d"}}},
		{[]string{"-resume", one}, options{resume: one}},
		{[]string{"-resume", one, "-report", "r.html"}, options{resume: one, runOptions: runOptions{report: "r.html"}}},
		{[]string{"-resume", one, "-data"}, options{resume: one, data: true}},
		{[]string{"-check", "-compare", "-csv", "t.csv", "a.toml"}, options{config: "a.toml", runOptions: runOptions{check: true, compare: true, csv: "t.csv"}}},
		{[]string{"-report", "r.html", "a.toml"}, options{config: "a.toml", runOptions: runOptions{report: "r.html"}}},
		{[]string{one, "-report", "r.html", two}, options{runs: []string{one, two}, runOptions: runOptions{report: "r.html"}}},
		{[]string{"-predict", "i.png", one}, options{runs: []string{one}, predict: []string{"i.png"}}},
		{[]string{"-predict", "test", "-set", "train.seed=1", one}, options{runs: []string{one}, predict: []string{"test"}, set: []string{"train.seed=1"}}},
		{[]string{"-predict", "i.png", "elsewhere"}, options{runs: []string{"elsewhere"}, predict: []string{"i.png"}}},
	} {
		var stdout strings.Builder
		if got, err := parseArgs(c.args, &stdout); err != nil || !reflect.DeepEqual(got, c.want) || stdout.Len() > 0 {
			t.Errorf("%q: got %+v, %v, %s\nwant %+v", c.args, got, err, &stdout, c.want)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "which config? try: train configs/mnist.toml"},
		{[]string{"-check"}, "which config?"},
		{[]string{"-report", "r.html"}, "which config?"},
		{[]string{"a.toml", "b.toml"}, "one config at a time: a.toml or b.toml?"},
		{[]string{"-compare", "custom,plan:slab", "a.toml"}, "-compare takes its list behind an equals sign: train -compare=custom,plan:slab a.toml\n"},
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
		{[]string{"-resume", one, "-compare"}, "-resume goes on with one run: leave -compare out, and choose the allocator with ALLOCATOR_TYPE"},
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
		{[]string{"-compare=bogus", "a.toml"}, `-compare=bogus: "bogus" is no allocator: use one of custom, `},
		{[]string{"-compare=custom,plan:bogus", "a.toml"}, `-compare=plan:bogus: "bogus" is no strategy: use one of tlsf, `},
		{[]string{"-predict", "i.png", "-set", "train.seed=1", one}, "-set is for -predict test, which takes its data from the config: leave it out"},
		{[]string{"-check", "-json", "a.toml"}, "-check and -json do not go together"},
		{[]string{"-compare=malocc", "a.toml"}, ": did you mean malloc?"},
		{[]string{"-data", ""}, "the name of a config, or of a run, is empty"},
		{[]string{"-report", "-", "a.toml"}, `invalid value "-" for flag -report: want a file name; for standard input or output use /dev/stdin or /dev/stdout`},
		{[]string{"-csv", "-", "a.toml"}, `invalid value "-" for flag -csv: want a file name; for standard input or output use /dev/stdin or /dev/stdout`},
	} {
		code, stdout, stderr := train(context.Background(), c.args...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%q: exit code %d, %s, got %q, want %s", c.args, code, stdout, stderr, c.want)
		}
	}
}

// TestFolderForConfig names a folder where a config is wanted.
func TestFolderForConfig(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "")
	trainAll(t, logDir, path)
	page, export := filepath.Join(t.TempDir(), "page.html"), filepath.Join(t.TempDir(), "export")
	if code, _, stderr := train(context.Background(), "-export", export, path); code != 0 {
		t.Fatal(stderr)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{logDir}, "train: " + logDir + " is a folder: name a TOML file, as in train configs/mnist.toml\n"},
		{[]string{export}, "train: " + export + " is a folder: name a TOML file, as in train configs/mnist.toml\n"},
		{[]string{"-report", page, export}, "train: " + export + " is no run: its run.json says nothing of how it ended; name a folder that a run wrote in its log_dir\n"},
		{[]string{"-report", page, logDir}, "train: " + logDir + " is no run: it has no run.json; did you mean " + filepath.Join(logDir, rundir.Latest) + "?\n"},
	} {
		if code, _, stderr := train(context.Background(), c.args...); code != exitFailure || stderr != c.want {
			t.Errorf("%q: exit code %d, got %q, want %q", c.args, code, stderr, c.want)
		}
	}
}

// TestUsage reads what -help prints: every flag once, and no line too long.
func TestUsage(t *testing.T) {
	code, stdout, stderr := train(context.Background(), "-help")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "usage: train [flags] <config>\n") {
		t.Errorf("exit code %d, %q, %s", code, stderr, stdout)
	}
	for line := range strings.Lines(stdout) {
		if len(line) > lineWidth+1 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	_, groups := new(options).define()
	for _, g := range groups {
		for _, f := range g.flags {
			if n := strings.Count(stdout, "\n  -"+f.Name+" ") + strings.Count(stdout, "\n  -"+f.Name+"["); n != 1 {
				t.Errorf("-%s stands there %d times", f.Name, n)
			}
		}
	}
}

// TestSet trains with settings, which count for more than the file, also in errors.
func TestSet(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "")
	code, stdout, stderr := train(context.Background(), "-set", "train.num_epochs=1", "-set", "train.bsz=100", path)
	if code != 0 || !strings.Contains(stdout, "batches of 100") {
		t.Fatalf("exit code %d, %s, %s", code, stdout, stderr)
	}
	if n := len(lines(t, filepath.Join(logDir, "train_losses.txt"))); n != 3 {
		t.Errorf("%d steps, want 3", n)
	}
	for setting, want := range map[string]string{
		"train.bsz=301":      "train: -set train.bsz: 301 is more than the 300 rows",
		"data.data_dir=none": "train: -set data.data_dir: stat none: no such file or directory",
	} {
		if code, _, stderr := train(context.Background(), "-set", setting, path); code != exitFailure || !strings.HasPrefix(stderr, want) {
			t.Errorf("%s: exit code %d, got %s, want %s", setting, code, stderr, want)
		}
	}
}

// TestCheck prints a config that is right, as one that is read to be the same, and says
// what is wrong with others before it looks for data.
func TestCheck(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "[allocator]\nstrategy = 'slab'\n")
	code, stdout, stderr := train(context.Background(), "-check", "-set", "data.data_dir=none", path)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	again := filepath.Join(t.TempDir(), "again.toml")
	if err := os.WriteFile(again, []byte(stdout), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, text, _ := train(context.Background(), "-check", again); text != stdout {
		t.Errorf("got\n%s, want\n%s", text, stdout)
	}
	if cfg, err := configs.Load(again); err != nil || cfg.Allocator.Strategy != "slab" || cfg.Data.DataDir != "none" || cfg.Model.FeatDim != 24 {
		t.Errorf("got %+v, %v", cfg, err)
	}
	if _, err := os.Stat(logDir); err == nil {
		t.Error("the folder of the logs was made")
	}
	for _, c := range []struct{ env, setting, want string }{
		{"", "allocator.trace=none/x.csv", "-set allocator.trace: open none/x.csv: no such file or directory"},
		{"jemalloc", "train.seed=1", "ALLOCATOR_TYPE=jemalloc: \"jemalloc\" is no allocator"},
		{"", "train.profile=1", "-set train.profile: needs executor = \"eager\""},
		{"", "allocator.poison=true", `-set allocator.poison: needs executor = "eager"`},
	} {
		t.Setenv(allocatorEnv, c.env)
		code, stdout, stderr := train(context.Background(), "-check", "-set", "train.executor=graph", "-set", c.setting, path)
		if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "train: "+c.want) {
			t.Errorf("%s: exit code %d, got %s, want %s", c.setting, code, stderr, c.want)
		}
	}
}

func TestStandardInput(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "num_epochs = 1\n")
	setConfig(t, path, "num_epochs = 3\n", "")
	old := os.Stdin
	defer func() { os.Stdin = old }()
	for _, c := range []struct {
		args         []string
		code         int
		stdout, err_ string
	}{
		{[]string{"-"}, 0, "standard input: CPU", ""},
		{[]string{"-", "-set", "train.bsz=0"}, exitUsage, "", "train: -set train.bsz: "},
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = f
		code, stdout, stderr := train(context.Background(), c.args...)
		if f.Close(); code != c.code || !strings.HasPrefix(stdout, c.stdout) || !strings.HasPrefix(stderr, c.err_) {
			t.Errorf("%q: exit code %d, %s, %s", c.args, code, stdout, stderr)
		}
	}
}

// A run's folder has the config that -resume reads.
func TestLoadOfRun(t *testing.T) {
	dir := runDir(t, "run.json")
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte("[train]\nbsz = 3\nseed = 4"), 0o666); err != nil {
		t.Fatal(err)
	}
	cfg, err := options{resume: dir, set: []string{"train.bsz=5"}}.load(&earlier{run: rundir.Run{Dir: dir}})
	if err != nil || cfg.Train.Bsz != 5 || cfg.Train.Seed != 4 {
		t.Errorf("got %+v, %v", cfg, err)
	}
}
