package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/internal/must"
)

func TestSettings(t *testing.T) {
	text := []byte("[train]\nbsz = 16\n[data]\ndata_dir = 'd'")
	for _, tt := range []struct {
		settings string // separated by |
		get      func(Config) any
		want     any
	}{
		{"train.bsz=128", func(c Config) any { return c.Train.Bsz }, 128},
		{" train.bsz = 0x80 ", func(c Config) any { return c.Train.Bsz }, 128},
		{"train.bsz=1|train.bsz=2", func(c Config) any { return c.Train.Bsz }, 2},
		{"train.seed=7", func(c Config) any { return c.Train.Bsz }, 16},
		{"train.learning_rate=1", func(c Config) any { return c.Train.LearningRate }, float32(1)},
		{"train.fuse=false", func(c Config) any { return c.Train.Fuse }, false},
		{"train.device=cpu", func(c Config) any { return c.Train.Device }, "cpu"},
		{`train.device="cpu"`, func(c Config) any { return c.Train.Device }, "cpu"},
		{"data.data_dir=", func(c Config) any { return c.Data.DataDir }, ""},
		{"data.data_dir=/a/b=c #d", func(c Config) any { return c.Data.DataDir }, "/a/b=c #d"},
		{"data.data_dir=x\nlog.log_dir='y'", func(c Config) any { return c.Data.DataDir }, "x\nlog.log_dir='y'"},
		{"data.data_dir='1'\n[train]", func(c Config) any { return c.Data.DataDir }, nil},
		{"data.data_dir= /a/b ", func(c Config) any { return c.Data.DataDir }, "/a/b"},
		{"model.feat_dim=32", func(c Config) any { return c.Model.FeatDim }, 32},
		{"allocator.strategy=bestfit", func(c Config) any { return c.Allocator.Strategy }, "bestfit"},
	} {
		c, err := Parse("t.toml", text, strings.Split(tt.settings, "|")...)
		if tt.want == nil {
			if err == nil {
				t.Errorf("%q: no error", tt.settings)
			}
		} else if err != nil {
			t.Errorf("%q: %v", tt.settings, err)
		} else if got := tt.get(c); got != tt.want {
			t.Errorf("%q: got %v, want %v", tt.settings, got, tt.want)
		}
	}
}

func TestSettingErrors(t *testing.T) {
	long, digits := strings.Repeat("x", 1<<16), strings.Repeat("9", 1<<16)
	for setting, want := range map[string]string{
		"train.bsz=0":                     "-set train.bsz: is 0, want an integer from 1 to 1048576",
		"train.bsz=99999999999999999999":  "-set train.bsz: is 99999999999999999999, beyond TOML's range, want an integer from 1 to 1048576",
		"train.bsz=many":                  `-set train.bsz: is "many", want an integer from 1 to 1048576`,
		"train.bsz=":                      `-set train.bsz: is "", want an integer`,
		"train.bsz=[1":                    "-set train.bsz: is not TOML: ",
		"train.bsz='1'\nx=2":              "-set train.bsz: has more than one value",
		"train.bsz={a=1}":                 "-set train.bsz: is a table, want an integer",
		`train.device="cpu`:               "-set train.device: is not TOML: ",
		"train.device=gpu":                `-set train.device: is "gpu", want "auto" or "cuda" or "cpu"`,
		"data.data_dir=1":                 "-set data.data_dir: is 1, want a string in quotes",
		"data.data_dir=\xff":              "-set data.data_dir: is not UTF-8",
		"allocator.segment_bytes=3":       "-set allocator.segment_bytes: is 3, want 0 or a power of two",
		"allocator.max_segment_bytes=512": "-set allocator.max_segment_bytes: is 512, less than the 2097152 of allocator.segment_bytes",
		"train.lr=1":                      "-set train.lr: unknown key, did you mean train.learning_rate?",
		"bsz=1":                           "-set bsz: unknown key, did you mean train.bsz?",
		"log=1":                           "-set log: unknown key, [log] has log_dir",
		"train.learning_rate=.5":          "-set train.learning_rate: is .5: TOML wants digits on both sides of the point, as in 0.5",
		"train.learning_rate=5.":          "-set train.learning_rate: is 5.: TOML wants",
		"train.executor=graf":             `-set train.executor: is "graf", want "eager" or "graph": did you mean "graph"?`,
		"train.bsz.x=1":                   "-set train.bsz.x: unknown key, ",
		"a\nb=1":                          `-set a\nb: unknown section`,
		"train.bsz":                       "-set train.bsz: want KEY=VALUE, as in -set train.bsz=128",
		"=1":                              "-set =1: want KEY=VALUE, as in -set train.bsz=128",
		"":                                "-set : want KEY=VALUE, as in -set train.bsz=128",
		long:                              "-set xxx",
		long + "=1":                       "-set xxx",
		"train.bsz=" + long + "end":       `-set train.bsz: is "` + long[:80] + "…" + long[:37] + `end", want an integer from 1 to 1048576`,
		"train.bsz=" + digits:             "-set train.bsz: is 999",
		"train.learning_rate=." + digits:  "-set train.learning_rate: is .999",
		"train.bsz=[" + long:              "-set train.bsz: is not TOML: ",
	} {
		_, err := Parse("t.toml", nil, "train.seed=1", setting)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
			t.Errorf("%.100q:\n got %v\nwant %s", setting, err, want)
		}
		// Alone, a setting excludes no other.
		if alone := CheckSetting(setting); (alone == nil) != strings.HasPrefix(setting, "allocator.max_segment_bytes") || alone != nil && alone.Error() != err.Error() {
			t.Errorf("%q: CheckSetting: %v, want %v", setting, alone, err)
		}
	}
}

// TestSettingPlaces wants a setting to replace the file's value, and to be named by later errors.
func TestSettingPlaces(t *testing.T) {
	c, err := Parse("t.toml", []byte("[train]\nbsz = 1\nseed = 2"), "train.bsz=101")
	must.OK(t, err)
	for key, want := range map[string]string{
		"train.bsz":    "-set train.bsz: no",
		"train.seed":   "t.toml:3: train.seed: no",
		"train.device": "t.toml: train.device (not set there): no",
	} {
		if got := c.Errorf(key, "no").Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if _, err := Parse("t.toml", []byte("[train]\nbsz = 0"), "train.bsz=1"); err == nil || !strings.HasPrefix(err.Error(), "t.toml:2: train.bsz: is 0") {
		t.Errorf("a wrong file with a setting: %v", err)
	}
}

func TestLoadStandardInput(t *testing.T) {
	old := os.Stdin
	defer func() { os.Stdin = old }()
	for text, want := range map[string]string{
		"[train]\nbsz = 3": "",
		"[train]\nbsz = 0": "standard input:2: train.bsz: is 0, ",
	} {
		path := filepath.Join(t.TempDir(), "in")
		must.OK(t, os.WriteFile(path, []byte(text), 0o666))
		f, err := os.Open(path)
		must.OK(t, err)
		os.Stdin = f
		c, err := Load("-", "train.seed=4")
		f.Close()
		if want == "" {
			if err != nil || c.Train.Bsz != 3 || c.Train.Seed != 4 || c.Name() != "standard input" {
				t.Errorf("got %+v, %v", c, err)
			}
		} else if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := Load("-"); err == nil { // it is closed
		t.Error("no error of a standard input that cannot be read")
	}
}
