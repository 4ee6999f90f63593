package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

// places are the folders in which torchvision has the files of a data set, from the folder that it was given.
var places = []string{"", "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "EMNIST/raw"}

// filesIn returns the folder of the four files of a data set in dir, and the files, in the order of Location.Files.
func filesIn(dir, name string) (string, []File, error) {
	if info, err := os.Stat(dir); err != nil {
		return "", nil, err
	} else if !info.IsDir() {
		return "", nil, fmt.Errorf("%s: is a file, want the folder of the four files", dir)
	}
	in := slices.Clone(places)
	if name == "fashion" {
		in[2], in[3] = in[3], in[2]
	}
	for _, place := range in {
		place = filepath.Join(dir, place)
		if l, found := layoutOf(place); found {
			files, err := l.files(place)
			return place, files, err
		}
	}
	_, err := layouts[0].files(dir)
	if none := new(missingError); errors.As(err, &none) {
		err = fmt.Errorf("%w%s", err, instead(dir))
	}
	return "", nil, err
}

// layoutOf returns the first layout whose training images dir has.
func layoutOf(dir string) (layout, bool) {
	i := slices.IndexFunc(layouts, func(l layout) bool {
		_, err := fileIn(dir, l.prefix+"train-images-idx3-ubyte")
		return err == nil
	})
	if i < 0 {
		return layout{}, false
	}
	return layouts[i], true
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

// fileIn finds a file in dir by its published name. It may be gzipped, have a dot before idx, as in Kaggle's
// archives, and be in a folder of its name, as some programs unpack it.
func fileIn(dir, name string) (File, error) {
	for _, folder := range []string{dir, filepath.Join(dir, name), filepath.Join(dir, dotted(name))} {
		for _, n := range []string{name, name + ".gz", dotted(name), dotted(name) + ".gz"} {
			path := filepath.Join(folder, n)
			info, err := os.Stat(path)
			switch {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && info.IsDir():
			case err != nil:
				return File{}, err
			case !info.Mode().IsRegular():
				return File{}, fmt.Errorf("%s is not a regular file", path)
			default:
				return File{path, info.Size()}, nil
			}
		}
	}
	return File{}, &missingError{dir, name}
}

func dotted(name string) string { return strings.Replace(name, "-idx", ".idx", 1) }

// A missingError says that a folder does not have a file.
type missingError struct{ dir, name string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s: no %s or %[2]s.gz in it", e.dir, e.name)
}

// LabelsBeside returns the file of labels that belongs to a file of images; empty: there is none, or the name of the
// images does not say which.
func LabelsBeside(images string) (string, error) {
	name := strings.Replace(strings.TrimSuffix(filepath.Base(images), ".gz"), ".idx3", "-idx3", 1)
	labels := strings.Replace(name, "images-idx3", "labels-idx1", 1)
	if labels == name {
		return "", nil
	}
	dir := filepath.Dir(images)
	if folder := filepath.Base(dir); folder == name || folder == dotted(name) {
		dir = filepath.Dir(dir)
	}
	f, err := fileIn(dir, labels)
	if none := new(missingError); errors.As(err, &none) {
		return "", nil
	}
	return f.Path, err
}

// instead ends the error of a folder that does not have the files: it says what would do.
func instead(dir string) (said string) {
	const mostEntries = 1000 // to look at
	seen := 0
	// A folder that cannot be read has no files that would do.
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > mostEntries || err != nil {
			return fs.SkipAll
		}
		if e.IsDir() {
			if _, found := layoutOf(path); found {
				said = ": did you mean " + path + "?"
				return fs.SkipAll
			}
			return nil
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".zip", ".tar", ".tgz", ".7z":
			said = ": unpack " + e.Name()
		case ".npz", ".csv", ".parquet", ".mat", ".pt", ".pkl":
			said = ": " + e.Name() + " has another format, and the IDX files of the data set would do"
		}
		return nil
	})
	return said
}
