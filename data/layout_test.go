package data

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
			if labels, err := LabelsBeside(l.Files[0].Path); err != nil || labels != l.Files[1].Path {
				t.Errorf("labels in %s, %v, want %s", labels, err, l.Files[1].Path)
			}
			prefix, _, _ := strings.Cut(tt.want, "train")
			if d.Train.Len() != 3 || d.Test.Len() != 2 || d.Train.Targets()[0] != tt.files[prefix] || d.Test.Targets()[0] != tt.files[prefix] {
				t.Errorf("got %v and %v, want label %d", d.Train.Targets(), d.Test.Targets(), tt.files[prefix])
			}
		})
	}
}

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), zip(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
