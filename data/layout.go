package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layouts are the ways in which data sets name their files, the one that is looked for
// first before the others: in front of the splits, and the split to validate on. The
// first is that of MNIST, Fashion-MNIST and KMNIST. The others are the six of EMNIST,
// whose archive has them all in one folder; labels of the last four exceed 9.
//
// EMNIST's images are stored column by column: beside those of MNIST they are
// transposed. A perceptron takes every pixel by itself, so training does not mind; but
// a picture that a model trained on them shall classify must be transposed too.
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

// fileIn finds dir/name, or dir/name.gz where that does not exist.
func fileIn(dir, name string) (File, error) {
	for _, n := range []string{name, name + ".gz"} {
		path := filepath.Join(dir, n)
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			return File{}, fmt.Errorf("%s is no file: images and labels are read from files alone", path)
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
