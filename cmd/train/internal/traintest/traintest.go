// Package traintest has what tests of the trainer share: a small data set and its config, a
// terminal, and writers and contexts that fail at a chosen moment.
package traintest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/must"
)

// WriteIDX writes an IDX file of bytes, gzipped.
func WriteIDX(t *testing.T, path string, dims []uint32, data []byte) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := errors.Join(
		binary.Write(z, binary.BigEndian, uint32(0x800|len(dims))),
		binary.Write(z, binary.BigEndian, dims),
		binary.Write(z, binary.BigEndian, data),
		z.Close(),
		os.WriteFile(path, b.Bytes(), 0o666))
	must.OK(t, err)
}

// DataDir makes a small data set of 4×4 images that a perceptron can learn: the pixel at the
// label's place is bright.
func DataDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 1))
	for prefix, n := range map[string]uint32{"train": 300, "t10k": 70} {
		images, labels := make([]byte, n*16), make([]byte, n)
		for i := range labels {
			labels[i] = byte(rng.IntN(10))
			for j := range 16 {
				images[16*i+j] = byte(rng.IntN(40))
			}
			images[16*i+int(labels[i])] = 255
		}
		WriteIDX(t, filepath.Join(dir, prefix+"-images-idx3-ubyte.gz"), []uint32{n, 4, 4}, images)
		WriteIDX(t, filepath.Join(dir, prefix+"-labels-idx1-ubyte.gz"), []uint32{n}, labels)
	}
	return dir
}

// WriteConfig writes a config for the small data set, and returns its path and the run's log_dir.
// swaps are pairs of texts in the config and what to write in their place.
func WriteConfig(t *testing.T, device, extra string, swaps ...string) (path, logDir string) {
	t.Helper()
	dir := t.TempDir()
	path, logDir = filepath.Join(dir, "small.toml"), filepath.Join(dir, "logs")
	text := fmt.Sprintf("[model]\nfeat_dim = 24\nnum_layers = 2\n[data]\ndata_dir = %q\n[log]\nlog_dir = %q\n[train]\ndevice = %q\nnum_epochs = 3\nbsz = 16\nlearning_rate = 0.5\n%s",
		DataDir(t), logDir, device, extra)
	Write(t, path, text)
	for pair := range slices.Chunk(swaps, 2) {
		SetConfig(t, path, pair[0], pair[1])
	}
	return path, logDir
}

func Lines(t *testing.T, path string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(must.Read(t, path)), "\n"), "\n")
}

// OnText keeps what is written, and calls Do once it contains Text.
type OnText struct {
	bytes.Buffer
	Text string
	Do   func()
	seen bool
}

func (w *OnText) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if !w.seen && strings.Contains(w.String(), w.Text) {
		w.seen = true
		w.Do()
	}
	return n, err
}

// SetConfig replaces a text in a config, which must contain it.
func SetConfig(t *testing.T, path, old, new string) {
	t.Helper()
	text := string(must.Read(t, path))
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q", path, old)
	}
	Write(t, path, strings.Replace(text, old, new, 1))
}

// Contents returns the files in a folder, at any depth, by their paths in it.
func Contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		name, relErr := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(text)
		return errors.Join(err, relErr)
	})
	must.OK(t, err)
	return files
}

// Loaded returns the config in a file, and its data set.
func Loaded(t *testing.T, path string) (configs.Config, data.Dataset) {
	t.Helper()
	cfg, err := configs.Load(path)
	must.OK(t, err)
	set, err := data.Load(context.Background(), data.Options{Name: cfg.Data.Dataset, Dir: cfg.Data.DataDir})
	must.OK(t, err)
	return cfg, set
}

// Countdown is a context that is cancelled after a number of calls of Err: the command makes one
// before a run begins, the session one before each epoch, and the trainer one before each eager
// step.
type Countdown struct {
	context.Context
	Left atomic.Int64
}

func (c *Countdown) Err() error {
	if c.Left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// Latest returns the folder of the newest run.
func Latest(t *testing.T, logDir string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(filepath.Join(logDir, "latest"))
	must.OK(t, err)
	return dir
}

// Full fails every write after a number of them.
type Full struct {
	bytes.Buffer
	Writes int
}

var ErrFull = errors.New("no space left")

func (f *Full) Write(p []byte) (int, error) {
	if f.Writes--; f.Writes < 0 {
		return 0, ErrFull
	}
	return f.Buffer.Write(p)
}

// WriterFunc is a Write method.
type WriterFunc func(p []byte) (int, error)

func (f WriterFunc) Write(p []byte) (int, error) { return f(p) }

// Blank returns a data set of black images.
func Blank(train, test, pixels int) data.Dataset {
	set := func(n int) data.Set {
		return data.Set{
			Images: tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(n, pixels)),
			Labels: tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(n)),
		}
	}
	return data.Dataset{Train: set(train), Test: set(test)}
}

// ConfigText returns a config that differs in the batch and in a key that a report does not
// describe in words.
func ConfigText(bsz int, fuse bool) string {
	return fmt.Sprintf("[model]\nfeat_dim = 784\nnum_layers = 4\n[train]\nbsz = %d\nlearning_rate = 0.1\nfuse = %v\n[data]\ndataset = \"mnist\"\n", bsz, fuse)
}

// NeedFile skips the test if the system has no such file.
func NeedFile(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skip(err)
	}
}

// WantFile fails the test unless a file has the text want.
func WantFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s has %q, %v, want %q", path, got, err, want)
	}
}

// Write writes a file.
func Write(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), 0o666))
}
