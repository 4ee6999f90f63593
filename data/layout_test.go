package data

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/must"
)

// TestPublished reads data sets under their published names. The labels tell which of the
// folder's data sets was read.
func TestPublished(t *testing.T) {
	all := []string{"byclass", "bymerge", "balanced", "letters", "digits", "mnist"}
	for _, tt := range []struct {
		name  string
		files map[string]byte // prefix of the names: label of all images
		want  string          // file of the training images, or a part of the error
	}{
		{"KMNIST", map[string]byte{"": 1}, "train-images-idx3-ubyte.gz"},
		{"EMNIST digits", map[string]byte{"emnist-digits-": 2}, "emnist-digits-train-images-idx3-ubyte.gz"},
		{"EMNIST mnist", map[string]byte{"emnist-mnist-": 3}, "emnist-mnist-train-images-idx3-ubyte.gz"},
		{"EMNIST letters", map[string]byte{"emnist-letters-": 26}, "emnist-letters-train-labels-idx1-ubyte.gz: labels: label 0 is 26, want 0 to 9; of EMNIST the splits digits and mnist have such labels"},
		{"EMNIST balanced", map[string]byte{"emnist-balanced-": 46}, "label 0 is 46, want 0 to 9"},
		{"EMNIST", nil, "emnist-digits-train-images-idx3-ubyte.gz"},
		{"KMNIST next to EMNIST", map[string]byte{"": 1, "emnist-digits-": 2}, "train-images-idx3-ubyte.gz"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.files == nil {
				tt.files = map[string]byte{}
				for i, split := range all {
					tt.files["emnist-"+split+"-"] = byte(26 - 5*i)
				}
			}
			for prefix, label := range tt.files {
				for split, n := range map[string]int{"train": 3, "test": 2} {
					if prefix == "" && split == "test" {
						split = "t10k"
					}
					write(t, dir, prefix+split+"-images-idx3-ubyte.gz", idx(make([]byte, n*28*28), magicImages, uint32(n), 28, 28))
					write(t, dir, prefix+split+"-labels-idx1-ubyte.gz", idx(slices.Repeat([]byte{label}, n), magicLabels, uint32(n)))
				}
			}
			o := Options{Name: "mnist", Dir: dir}
			d, err := Load(t.Context(), o)
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %s", err, tt.want)
				}
				return
			}
			l, err := Locate(t.Context(), o)
			if err != nil || len(l.Files) != 4 || filepath.Base(l.Files[0].Path) != tt.want {
				t.Errorf("got %+v, %v, want %s", l, err, tt.want)
			}
			prefix, _, _ := strings.Cut(tt.want, "train")
			if d.Train.Len() != 3 || d.Test.Len() != 2 || d.Train.Targets()[0] != tt.files[prefix] || d.Test.Targets()[0] != tt.files[prefix] {
				t.Errorf("got %v and %v, want label %d", d.Train.Targets(), d.Test.Targets(), tt.files[prefix])
			}
		})
	}
}

// TestUnpacked reads data sets as other programs unpack them. Of folders that will not do, errors say which would.
func TestUnpacked(t *testing.T) {
	dotted := func(name string) string { return strings.Replace(name, "-idx", ".idx", 1) }
	for _, tt := range []struct {
		name, set string
		place     func(name string) string // of a file in the folder
		want      string                   // the file of training images, or the error after the folder
	}{
		{"Kaggle, 7-zip", "mnist", dotted, "train-images.idx3-ubyte"},
		{"packed", "mnist", func(name string) string { return dotted(name) + ".gz" }, "train-images.idx3-ubyte.gz"},
		{"a folder of each name", "mnist", func(name string) string { return name + "/" + name }, "train-images-idx3-ubyte/train-images-idx3-ubyte"},
		{"with dots in folders", "mnist", func(name string) string { return name + "/" + dotted(name) }, "train-images-idx3-ubyte/train-images.idx3-ubyte"},
		{"raw of torchvision", "mnist", func(name string) string { return "raw/" + name }, "raw/train-images-idx3-ubyte"},
		{"torchvision", "mnist", func(name string) string { return "MNIST/raw/" + name }, "MNIST/raw/train-images-idx3-ubyte"},
		{"torchvision's Fashion-MNIST", "fashion", func(name string) string { return "FashionMNIST/raw/" + name }, "FashionMNIST/raw/train-images-idx3-ubyte"},
		{"elsewhere", "mnist", func(name string) string { return "archive/all/" + name }, ": no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in it: did you mean DIR/archive/all?"},
		{"Keras", "mnist", func(string) string { return "mnist.npz" }, ": no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in it: mnist.npz has another format, and the IDX files of the data set would do"},
		{"not unpacked", "mnist", func(string) string { return "archive.zip" }, ": no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in it: unpack archive.zip"},
		{"no labels", "mnist", func(name string) string { return strings.Replace(name, "labels", "label", 1) }, ": no train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz in it"},
	} {
		dir := t.TempDir()
		for name, content := range small {
			path := filepath.Join(dir, tt.place(name))
			must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
			write(t, filepath.Dir(path), filepath.Base(path), content)
		}
		o := Options{Name: tt.set, Dir: dir}
		l, err := Locate(t.Context(), o)
		got := ""
		if err != nil {
			got = strings.ReplaceAll(strings.TrimPrefix(err.Error(), dir), dir, "DIR")
		} else if got, err = filepath.Rel(dir, l.Files[0].Path); err == nil {
			_, err = Load(t.Context(), o)
			if labels, beside := LabelsBeside(l.Files[0].Path); beside != nil || labels != l.Files[1].Path {
				t.Errorf("%s: labels in %s, %v, want %s", tt.name, labels, beside, l.Files[1].Path)
			}
		}
		if got != tt.want || (err != nil) != strings.HasPrefix(tt.want, ":") {
			t.Errorf("%s: got %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
	dir := t.TempDir()
	for _, set := range []string{"MNIST", "FashionMNIST"} {
		to := filepath.Join(dir, set, "raw")
		must.OK(t, os.MkdirAll(to, 0o755))
		for name, content := range small {
			write(t, to, name, content)
		}
	}
	for set, want := range map[string]string{"mnist": "MNIST", "fashion": "FashionMNIST"} {
		if d, err := Load(t.Context(), Options{Name: set, Dir: dir}); err != nil || d.Dir != filepath.Join(dir, want, "raw") {
			t.Errorf("%s of several: %s, %v", set, d.Dir, err)
		}
	}
}

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(dir, name), zip(content), 0o644))
}
