package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// layouts are the ways in which data sets name their files: the prefix, and the split to
// validate on. The first that dir has counts. It is that of MNIST, Fashion-MNIST and KMNIST;
// the others are EMNIST's six, which are all in one folder. Labels of the last four exceed 9.
//
// EMNIST stores images column by column, so they are MNIST's transposed. Training does not
// depend on this, but a picture that such a model classifies must be transposed too.
var layouts = []layout{
	{"", "t10k"},
	{"emnist-digits-", "test"},
	{"emnist-mnist-", "test"},
	{"emnist-letters-", "test"},
	{"emnist-balanced-", "test"},
	{"emnist-bymerge-", "test"},
	{"emnist-byclass-", "test"},
}

type layout struct{ prefix, test string }

// filesIn returns the four files of a data set in dir, in the order of Location.Files.
func filesIn(dir string) ([]File, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s: is a file, want the folder of the four files", dir)
	}
	return layoutOf(dir).files(dir)
}

// layoutOf returns the first layout whose training images dir has, or that of MNIST.
func layoutOf(dir string) layout {
	i := slices.IndexFunc(layouts, func(l layout) bool {
		_, err := fileIn(dir, l.prefix+"train-images-idx3-ubyte")
		return err == nil
	})
	return layouts[max(i, 0)]
}

func (l layout) files(dir string) (files []File, err error) {
	for _, split := range []string{"train", l.test} {
		for _, content := range []string{"-images-idx3-ubyte", "-labels-idx1-ubyte"} {
			f, err := fileIn(dir, l.prefix+split+content)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// fileIn finds a file in dir by its published name. It may be gzipped.
func fileIn(dir, name string) (File, error) {
	for _, n := range []string{name, name + ".gz"} {
		path := filepath.Join(dir, n)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return File{}, err
		case !info.Mode().IsRegular():
			return File{}, fmt.Errorf("%s is not a regular file", path)
		default:
			return File{path, info.Size()}, nil
		}
	}
	return File{}, &missingError{dir, name}
}

// A missingError says that a folder does not have a file.
type missingError struct{ dir, name string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s: no %s or %[2]s.gz in it", e.dir, e.name)
}

// LabelsBeside returns the file of labels that belongs to a file of images; empty: there is none, or the name of the
// images does not say which.
func LabelsBeside(images string) (string, error) {
	name := strings.TrimSuffix(filepath.Base(images), ".gz")
	labels := strings.Replace(name, "images-idx3", "labels-idx1", 1)
	if labels == name {
		return "", nil
	}
	f, err := fileIn(filepath.Dir(images), labels)
	if none := new(missingError); errors.As(err, &none) {
		return "", nil
	}
	return f.Path, err
}
