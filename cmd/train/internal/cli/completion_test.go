package cli

import (
	"os"
	"path/filepath"
	"testing"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/completion/completiontest"
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
	traintest.OK(t, os.Mkdir(filepath.Join(dir, "logs"), 0o777))
	completiontest.Run(t, "train", script, dir, cases)
}
