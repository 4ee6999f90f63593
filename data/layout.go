package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// filesIn returns the four files in dir, in the order of Location.Files.
func filesIn(dir string) ([]File, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s: is a file, want the folder of the four files", dir)
	}
	for _, l := range layouts {
		if _, err := fileIn(dir, l.prefix+"train-images-idx3-ubyte"); err == nil {
			return l.files(dir)
		}
	}
	return layouts[0].files(dir) // for its error
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

// fileIn finds dir/name, or else dir/name.gz.
func fileIn(dir, name string) (File, error) {
	for _, n := range []string{name, name + ".gz"} {
		path := filepath.Join(dir, n)
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			return File{}, fmt.Errorf("%s is not a regular file", path)
		}
		if err == nil {
			return File{path, info.Size()}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return File{}, err
		}
	}
	return File{}, fmt.Errorf("%s: no %s or %[2]s.gz in it", dir, name)
}
