package configs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mlpool/internal/must"
)

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		// Not TOML.
		{"[train]\nbsz = = 3", "t.toml:2: "},
		{"bsz", "t.toml:1: "},
		{"[train\nbsz = 3\n", "t.toml:1: expected '.' or ']'"},
		{"\r\n[[train\r\nbsz = 3", "t.toml:2: expected '.' or ']'"},
		{"[train]\nbsz = +\n", "t.toml:2: expected a digit"},
		{"[train]\nbsz =\nseed = 1", "t.toml:2: expected value"},
		{"[log]\nlog_dir = \"\\u00\n\"", "t.toml:2: expected four hexadecimal digits"},
		{"[log]\nlog_dir = \"\"\"\n\n\\q\"\"\"", "t.toml:4: invalid escape"},
		{"[train]\nbsz = 1\nbsz = 2", "t.toml:3: "},
		{"[log]\nlog_dir = \"a\x00b\"", "t.toml:2: "},
		{"\xff\xfe[\x00", "t.toml:1: "},

		// Unknown.
		{"[train]\nbzs = 3", "t.toml:2: train.bzs: unknown key, did you mean train.bsz?"},
		{"# a\n\nbsz = 3", "t.toml:3: bsz: unknown key, did you mean train.bsz?"},
		{"[data]\nbsz = 3", "t.toml:2: data.bsz: unknown key, did you mean train.bsz?"},
		{"[modle]\nfeat_dim = 3", "t.toml:1: modle: unknown key, did you mean model?"},
		{"modle.feat_dim = 3", "t.toml:1: modle.feat_dim: unknown key, did you mean model.feat_dim?"},
		{"[log]\ncolour = 3", "t.toml:2: log.colour: unknown key, [log] has log_dir"},
		{"[log]\n\"\" = 3", `t.toml:2: log."": unknown key, [log] has log_dir`},
		{"[optimizer]", "t.toml:1: optimizer: unknown section"},
		{"optimizer.name.first = 1", "t.toml:1: optimizer.name: unknown section"},
		{`"train.bsz" = 3`, `t.toml:1: "train.bsz": unknown section`},
		{"[train]\n\"a\\nb\" = 3", `t.toml:2: train."a\nb": unknown key, [train] has num_epochs, bsz, learning_rate, seed, device, precision, executor, fuse, verbose, time_epoch, profile, nvtx, checkpoint_every`},

		// Not a section.
		{"train = 3", "t.toml:1: train: is 3, want a section"},
		{"[[train]]\nbsz = 3", "t.toml:1: train: is an array, want a section"},

		// By another program's word.
		{"[train]\nlr = 3", "t.toml:2: train.lr: unknown key, did you mean train.learning_rate?"},
		{"[train]\nbatch_size = 3", "t.toml:2: train.batch_size: unknown key, did you mean train.bsz?"},
		{"[model]\nhidden_size = 3", "t.toml:2: model.hidden_size: unknown key, did you mean model.feat_dim?"},
		{"network.layers = 3", "t.toml:1: network.layers: unknown key, did you mean model.num_layers?"},

		// Wrong type.
		{"[model]\n\nfeat_dim = 784.0", "t.toml:3: model.feat_dim: is 784.0, want an integer from 1 to 32768"},
		{"[train]\nbsz = -600.0", "t.toml:2: train.bsz: is -600.0, want an integer from 1 to 1048576"},
		{"[train]\nlearning_rate = -1.0", "t.toml:2: train.learning_rate: is -1.0, want a positive number"},
		{"[model.feat_dim]\nx = 1", "t.toml:1: model.feat_dim: is a table, want an integer from 1 to 32768"},
		{"model = { num_layers = 4, feat_dim = true }", "t.toml:1: model.feat_dim: is true, want an integer from 1 to 32768"},
		{"[train]\nlearning_rate = [0.1]", "t.toml:2: train.learning_rate: is an array, want a positive number"},
		{"[train]\nfuse = 1", "t.toml:2: train.fuse: is 1, want true or false"},
		{"[train]\ndevice = 0", `t.toml:2: train.device: is 0, want "auto" or "cuda" or "cpu"`},
		{"[log]\nlog_dir = 2020-01-02", "t.toml:2: log.log_dir: is 2020-01-02 "},

		// Defined twice.
		{"train = 3\ntrain.bsz = 8", "t.toml:2: Key 'train' has already been defined."},
		{"train.bsz = 8\ntrain = 3", "t.toml:2: train: has already been defined as a section"},
		{"train.bsz = 8\ntrain = 3\n[train]\nseed = 1", "t.toml:"},
		{"train.bsz = 8\ntrain = \"x\"\ntrain.seed = 1", "t.toml:"},
		{"train.bsz = 8\ntrain = {seed = 3}", "t.toml:2: Key 'train' has already been defined."},
		{"model.feat_dim.x = 8\nmodel.feat_dim = 3", "t.toml:2: model.feat_dim: is a table, want an integer"},

		// Out of range.
		{"[train]\nbsz = 0", "t.toml:2: train.bsz: is 0, want an integer from 1 to 1048576"},
		{"[model]\nfeat_dim = 32769", "t.toml:2: model.feat_dim: is 32769, want an integer from 1 to 32768"},
		{"[train]\nseed = -1", "t.toml:2: train.seed: is -1, want an integer from 0 to 9223372036854775807"},
		{"[train]\nlearning_rate = 0", "t.toml:2: train.learning_rate: is 0, want a positive number"},
		{"[train]\nlearning_rate = nan", "t.toml:2: train.learning_rate: is NaN, want a positive number"},
		{"[allocator]\nmax_bytes = -1", "t.toml:2: allocator.max_bytes: is -1, want an integer from 0 to 70368744177664"},
		{"[allocator]\nsegment_bytes = 1000", "t.toml:2: allocator.segment_bytes: is 1000, want 0 or a power of two from 256 to 70368744177664"},
		{"[allocator]\nsegment_bytes = 128", "t.toml:2: allocator.segment_bytes: is 128, want 0 or a power of two from 256"},
		{"[allocator]\nsegment_bytes = 140737488355328", "t.toml:2: allocator.segment_bytes: is 140737488355328, want 0 or a power of two from 256"},
		{"[allocator]\nmax_fraction = -0.5", "t.toml:2: allocator.max_fraction: is -0.5, want a number from 0 to 1"},
		{"[allocator]\nmax_fraction = 1.5", "t.toml:2: allocator.max_fraction: is 1.5, want a number from 0 to 1"},
		{"[allocator]\ngc_threshold = nan", "t.toml:2: allocator.gc_threshold: is NaN, want a number from 0 to 1"},
		{"[train]\nlearning_rate = inf", "t.toml:2: train.learning_rate: is +Inf, want a positive number"},
		{"[train]\nbsz = 99999999999999999999", "t.toml:2: train.bsz: is 99999999999999999999, beyond TOML's range, want an integer from 1 to 1048576"},
		{"train = { bsz = -0xffff_ffff_ffff_ffff }", "t.toml:1: "}, // a sign before 0x is not TOML
		{"train = { bsz = 0xffff_ffff_ffff_ffff }", "t.toml:1: train.bsz: is 0xffff_ffff_ffff_ffff, beyond TOML's range, want an integer from 1 to 1048576"},
		{"[train]\nseed = 9223372036854775808", "t.toml:2: train.seed: is 9223372036854775808, beyond TOML's range, want an integer from 0 to 9223372036854775807"},
		{"[train]\nlearning_rate = 1e999", "t.toml:2: train.learning_rate: is 1e999, beyond TOML's range, want a positive number"},
		{"[train]\nbzs = 99999999999999999999", "t.toml:2: train.bzs: 99999999999999999999 is out of range for int64"},
		{"[train]\nbsz = [\n1,\n99999999999999999999]", "t.toml:4: train.bsz: is 99999999999999999999, beyond TOML's range, want an integer"},
		{"[allocator]\nsegments = \"cudaMalloc\"", `t.toml:2: allocator.segments: is "cudaMalloc", want "virtual" or "malloc" or ""`},
		{"[allocator]\ntrace = \"x.parquet\"", `t.toml:2: allocator.trace: is "x.parquet", want a file that ends in .csv, .json or .pickle`},
		{"[allocator]\ntrace = 1.0", `t.toml:2: allocator.trace: is 1.0, want a file that ends in .csv, .json or .pickle`},
		{"[train]\nlearning_rate = 1e-300", "t.toml:2: train.learning_rate: is 1e-300, want a positive number that a float32 holds"},
		{"[train]\ndevice = \"gpu\"", `t.toml:2: train.device: is "gpu", want "auto" or "cuda" or "cpu": did you mean "cuda"?`},
		{"[train]\ndevice = \"CPU\"", `t.toml:2: train.device: is "CPU", want "auto" or "cuda" or "cpu": did you mean "cpu"?`},
		{"[allocator]\nstrategy = \"bestfitt\"", `t.toml:2: allocator.strategy: is "bestfitt", want "tlsf" or "sizeclass" or `},
		{"[data]\ndataset = \"\"\"\nmnist\"\"\"\n[train]\nbsz=0", "t.toml:5: train.bsz: is 0"},
		{"[data]\ndataset = \"cifar\\n\"", `t.toml:2: data.dataset: is "cifar\n", want "mnist" or "fashion"`},
		{"[data]\ndata_dir = '''\n[train]\nbsz = 0'''\n[model]\nfeat_dim = 0", "t.toml:6: model.feat_dim: is 0"},

		// Values that exclude each other.
		{"[allocator]\nsegment_bytes = 512\nmax_segment_bytes = 511", "t.toml:3: allocator.max_segment_bytes: is 511, less than the 512 of allocator.segment_bytes"},
		{"[allocator]\nmax_segment_bytes = 1048576", "t.toml:2: allocator.max_segment_bytes: is 1048576, less than the 2097152 of allocator.segment_bytes"},
		{"[allocator]\n\npreallocate = 6\nmax_bytes = 5", "t.toml:3: allocator.preallocate: is 6, more than the 5 of allocator.max_bytes"},
	} {
		_, err := Parse("t.toml", []byte(tt.text))
		if err == nil {
			t.Errorf("%q: no error, want %s", tt.text, tt.want)
		} else if got := err.Error(); !strings.HasPrefix(got, tt.want) || strings.Contains(got, "\n") {
			t.Errorf("%q:\n got %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

// TestParseAllErrors returns every error, once each, in the order of the text, those of settings last.
func TestParseAllErrors(t *testing.T) {
	const text = "[train]\nbsz = 0\nseed = -1\n[optimizer]\nname = 'adam'\nbeta = 1\n[model]\nfeat_dim = {a = 1, b = 2}"
	_, err := Parse("t.toml", []byte(text), "train.lr=1", "train.fuse=maybe", "train.bsz=5")
	want := []string{"t.toml:2: train.bsz: ", "t.toml:3: train.seed: ", "t.toml:4: optimizer: ", "t.toml:8: model.feat_dim: ", "-set train.lr: ", "-set train.fuse: "}
	var all Errors
	if !errors.As(err, &all) || len(all) != len(want) {
		t.Fatalf("%v, want %d errors", err, len(want))
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != len(want) || !errors.Is(err, all[1]) {
		t.Errorf("%d lines, want one for each error: %v", lines, err)
	}
	for i, err := range all {
		if !strings.HasPrefix(err.Error(), want[i]) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %d is %q, want %q", i, err, want[i])
		}
	}
	_, err = Parse("t.toml", []byte("[allocator]\nmax_segment_bytes = 1\npreallocate = 2\nmax_bytes = 1\npoison = true"), "train.executor=graph", "train.profile=1")
	if !errors.As(err, &all) || len(all) != 4 {
		t.Errorf("four values that exclude others: %v", err)
	}
}

// TestParseManyErrors reads a text that is no config: it says so after the first errors.
func TestParseManyErrors(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("[train]\n")
	for i := range 20_000 {
		fmt.Fprintf(&text, "key%d = 1\n", i)
	}
	_, err := Parse("t.toml", []byte(text.String()))
	var all Errors
	if !errors.As(err, &all) || len(all) != mostErrors+1 || all[mostErrors].Error() != "t.toml: there may be more errors: is it a config?" {
		t.Errorf("%d errors: %v", len(all), err)
	}
}

func TestParse(t *testing.T) {
	const all = `
[model]
feat_dim = 1
num_layers = 2
[train]
num_epochs = 3
bsz = 4
learning_rate = 1
seed = 9223372036854775807
device = "cpu"
precision = "3xtf32"
executor = "eager"
fuse = false
verbose = true
time_epoch = false
profile = 8
nvtx = true
checkpoint_every = 9
[allocator]
strategy = "buddy"
reuse = "opportunistic"
segments = "malloc"
segment_bytes = 256
max_segment_bytes = 512
max_bytes = 6
max_fraction = 0.5
gc_threshold = 1
busy_slack = 2.5
slack = 0.25
preallocate = 5
release_threshold = 6
reuse_dependencies = false
reuse_opportunistic = false
reuse_internal_events = false
trace = "t.csv"
trace_events = 7
poison = true
[data]
dataset = "fashion"
data_dir = "d"
[log]
log_dir = ""
`
	want := Config{
		Model: Model{FeatDim: 1, NumLayers: 2},
		Train: Train{
			NumEpochs: 3, Bsz: 4, LearningRate: 1, Seed: 1<<63 - 1, Device: "cpu", Precision: "3xtf32", Executor: "eager",
			Verbose: true, Profile: 8, Nvtx: true, CheckpointEvery: 9,
		},
		Allocator: Allocator{
			Strategy: "buddy", Reuse: "opportunistic", Segments: "malloc", SegmentBytes: 256, MaxSegmentBytes: 512,
			GcThreshold: 1, BusySlack: 2.5, Slack: 0.25, Preallocate: 5, ReleaseThreshold: 6,
			MaxBytes: 6, MaxFraction: 0.5, Trace: "t.csv", TraceEvents: 7, Poison: true,
		},
		Data: Data{Dataset: "fashion", DataDir: "d"},
	}
	got, err := Parse("t.toml", []byte(all))
	must.OK(t, err)
	if len(got.places) != len(keys) {
		t.Errorf("the text sets %d keys of %d: add the new one to it", len(got.places), len(keys))
	}
	got.name, got.places = "", nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestParseLimits accepts the ends of a range, and equal limits.
func TestParseLimits(t *testing.T) {
	for _, text := range []string{
		"train.learning_rate = 3.4028234663852886e38", // the largest float32
		"allocator.max_fraction = 0",
		"allocator.segment_bytes = 70368744177664",
		"allocator.segment_bytes = 512\nallocator.max_segment_bytes = 512",
		"allocator.max_segment_bytes = 2097152", // segment_bytes, where that is not set
		"allocator.max_bytes = 5\nallocator.preallocate = 5",
		"allocator.preallocate = 5", // without a limit
		"allocator.trace = 't.csv'",
		"allocator.trace = 't.json'",
		"allocator.trace = 't.pickle'",
	} {
		if _, err := Parse("t.toml", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestParseDefaults reads Default from files that set nothing, or a default in another of TOML's spellings.
func TestParseDefaults(t *testing.T) {
	for _, text := range []string{"", "# nothing", "[model]\n[log]", "train.bsz = 64", "train = { 'bsz' = 0x40 }", "\r\n[train]\r\nbsz=64\r\n"} {
		c, err := Parse("t.toml", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		c.name, c.places = "", nil
		if !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q: got %+v", text, c)
		}
	}
}

func TestCheckData(t *testing.T) {
	set, err := Parse("t.toml", []byte("[train]\n\nbsz = 101"))
	must.OK(t, err)
	unset, err := Parse("t.toml", nil)
	must.OK(t, err)
	for _, tt := range []struct {
		c           Config
		rows, ranks int
		want        string
	}{
		{set, 101, 1, ""},
		{set, 202, 2, ""},
		{set, 201, 2, "t.toml:3: train.bsz: 101 on each of 2 ranks is more than the 201 rows of the training set"},
		{set, 100, 1, "t.toml:3: train.bsz: 101 is more than the 100 rows of the training set"},
		{unset, 63, 1, "t.toml: train.bsz (not set there): 64 is more than the 63 rows of the training set"},
	} {
		got := ""
		if err := tt.c.CheckData(tt.rows, tt.ranks); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%d rows: got %q, want %q", tt.rows, got, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "no.toml")); err == nil || !strings.Contains(err.Error(), "no.toml") {
		t.Errorf("a missing file: %v", err)
	}
	for size, want := range map[int]string{maxFile: "", maxFile + 1: "larger than 1 MiB"} {
		path := filepath.Join(t.TempDir(), "long.toml")
		must.OK(t, os.WriteFile(path, []byte(strings.Repeat("#", size)), 0o666))
		if _, err := Load(path); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+": "+want)) {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
	recipes, err := filepath.Glob("*.toml")
	must.OK(t, err)
	logs := map[string]string{}
	for _, path := range recipes {
		c, err := Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if other := logs[c.Log.LogDir]; other != "" {
			t.Errorf("%s and %s write to one folder, %s", other, path, c.Log.LogDir)
		}
		logs[c.Log.LogDir] = path
	}
	if len(recipes) < 4 {
		t.Errorf("only these recipes: %q", recipes)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"[train]\nbsz = 64\nlearning_rate = nan", "model.feat_dim = '''\n'''", "[[train]]\nbsz = 1",
		"[a]\n\"b\\n.c\" = {d = [1, {e = 2}]}", "log.log_dir = 1979-05-27T07:32:00Z", "\xef\xbb\xbf[log]", "[train.bsz.x]", "x = \"\\u2028\"",
		"x = 0b\n", "[train]\nbsz = 99999999999999999999", "[train]\n\"a\\nb\" = 99999999999999999999",
	} {
		f.Add([]byte(text))
	}
	long, digits := strings.Repeat("x", 1<<16), strings.Repeat("9", 1<<16)
	for _, text := range []string{
		long, long + " = 1", "[" + long + "]", long + "=1\n" + long + "=2", "[train]\nbsz = '" + long + "'",
		"[train]\nbsz = " + long, "[train]\nbsz = " + digits, "[train]\n" + long + " = 1", "[train]\n" + long + ".x = 1",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("t.toml", text)
		if err == nil {
			if c.Model.FeatDim < 1 || c.Train.Bsz < 1 || !(c.Train.LearningRate > 0) {
				t.Errorf("accepted %+v", c)
			}
			if again, err := Parse("t.toml", c.TOML()); err != nil || !sameValues(c, again) {
				t.Errorf("%+v is written as\n%s%v", c, c.TOML(), err)
			}
			return
		}
		all := Errors{err}
		errors.As(err, &all)
		for _, err := range all {
			if s := err.Error(); !strings.HasPrefix(s, "t.toml:") || strings.ContainsAny(s, "\r\n") || len(s) > 4000 {
				t.Errorf("want an error of one short line, got %d bytes: %.200q", len(s), s)
			}
		}
	})
}
