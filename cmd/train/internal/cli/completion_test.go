package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/completion/completiontest"
	"mlpool/internal/must"
)

func TestCompletion(t *testing.T) {
	cases := []completiontest.Case{
		{"train -co", "-completion", "-check"},
		{"train -co", "-compare", "-set"},
		{"train -set train.n", "train.num_epochs=", "train.bsz="},
		{"train -set train.n", "train.nvtx=", "model.num_layers="},
		{"train -set train.executor=", "graph", "train.bsz="},
		{"train -set train.fuse=f", "false", "true"},
		{"train -set allocator.strategy=b", "bestfit", "tlsf"},
		{"train -compare=c", "cuda", "malloc"},
		{"train -compare=custom:b", "bestfit", "tlsf"},
		{"train -compare=custom:b", "buddy", "slab"},
		{"train -completion ", "fish", "small.toml"},
		{"train -export l", "logs", "small.toml"},
		{"train s", "small.toml", "x.png"},
		{"train -predict ", "x.png", "-set"},
	}
	dir := t.TempDir()
	for _, name := range []string{"small.toml", "x.png"} {
		traintest.Write(t, filepath.Join(dir, name), "")
	}
	must.OK(t, os.Mkdir(filepath.Join(dir, "logs"), 0o777))
	completiontest.Run(t, "train", script, dir, cases)
}

// TestDescriptions wants a description of its own for each word that fish offers, or none.
func TestDescriptions(t *testing.T) {
	fish := script("fish")
	for _, want := range []string{
		`train.bsz=\t"an integer from 1 to 1048576; 64 by default"`, `train.fuse=true\t"the default"`, `train.fuse=false\t `, `-compare=custom:bestfit\t"takes `, `log.log_dir=\t"any text; logs by default"`, ` 1%\t `,
	} {
		if !strings.Contains(fish, want) {
			t.Errorf("no %s in:\n%s", want, fish)
		}
	}
}
