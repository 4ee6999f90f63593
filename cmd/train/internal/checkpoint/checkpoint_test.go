package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

const fileName = "w.safetensors"

// matrix returns an inputs×outputs matrix of noise.
func matrix(inputs, outputs int) *tensor.Dense {
	rng := rand.New(rand.NewPCG(uint64(inputs), uint64(outputs)))
	data := make([]float32, inputs*outputs)
	for i := range data {
		data[i] = rng.Float32() - 0.5
	}
	return tensor.New(tensor.WithShape(inputs, outputs), tensor.WithBacking(data))
}

// TestSaveAndLoad saves twice: the folder has only the second checkpoint, in PyTorch's layout. It takes several chunks.
func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, (Checkpoint{Weights: []*tensor.Dense{matrix(1, 1), matrix(1, 1)}, Epoch: 1}).Save(filepath.Join(dir, fileName)))
	want := Checkpoint{
		Weights: []*tensor.Dense{matrix(7, 150), matrix(150, 120), matrix(120, 10)}, Epoch: 4, Step: 17,
		Settings: map[string]string{"train.seed": "9"},
	}
	must.OK(t, want.Save(filepath.Join(dir, fileName)))
	if len(want.Settings) != 1 {
		t.Errorf("saving changed the settings to %v", want.Settings)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != fileName {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	got, err := Load(filepath.Join(dir, fileName))
	must.OK(t, err)
	if got.Epoch != 4 || got.Step != 17 || !maps.Equal(got.Settings, want.Settings) || len(got.Weights) != 3 {
		t.Fatalf("loaded %+v", got)
	}
	for i, w := range want.Weights {
		if !got.Weights[i].Shape().Eq(w.Shape()) || !slices.Equal(got.Weights[i].Float32s(), w.Float32s()) {
			t.Errorf("layer %d differs", i)
		}
	}
	f, err := os.Open(filepath.Join(dir, fileName))
	must.OK(t, err)
	defer f.Close()
	info, err := f.Stat()
	must.OK(t, err)
	tensors, metadata, err := readSafetensors(f, info.Size())
	must.OK(t, err)
	first := tensors[0]
	if first.Name != "0.weight" || tensors[2].Name != "4.weight" || !reflect.DeepEqual(first.Shape, []int{150, 7}) || first.Data[1] != want.Weights[0].Float32s()[150] {
		t.Errorf("%s %v begins with %v: not the transpose of %v", first.Name, first.Shape, first.Data[:2], want.Weights[0])
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, t := range tensors {
		if err == nil {
			err = binary.Write(sum, binary.LittleEndian, t.Data)
		}
	}
	must.OK(t, err)
	if wanted := map[string]string{"epoch": "4", "step": "17", "format": "pt", "crc32c": fmt.Sprintf("%08x", sum.Sum32()), "train.seed": "9"}; !maps.Equal(metadata, wanted) {
		t.Errorf("metadata %v, want %v", metadata, wanted)
	}
}

// TestSaveFails keeps the earlier checkpoint.
func TestSaveFails(t *testing.T) {
	c := Checkpoint{Weights: []*tensor.Dense{matrix(2, 2), matrix(2, 2)}}
	if err := c.Save(filepath.Join(t.TempDir(), "missing", fileName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if err := c.Save(t.TempDir()); err == nil {
		t.Error("in place of a folder: no error")
	}
	dir := t.TempDir()
	must.OK(t, c.Save(filepath.Join(dir, fileName)))
	traintest.NeedFile(t, "/dev/full")
	full := func() {
		must.OK(t, os.Symlink("/dev/full", filepath.Join(dir, fileName+".tmp")))
	}
	c.Epoch = 1
	large := Checkpoint{Weights: []*tensor.Dense{matrix(100, 100), matrix(100, 100)}}
	for _, c := range []Checkpoint{c, large} {
		full()
		if err := c.Save(filepath.Join(dir, fileName)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("on a full disk: %v", err)
		}
	}
	if got, err := Load(filepath.Join(dir, fileName)); err != nil || got.Epoch != 0 {
		t.Errorf("afterwards there is %+v, %v", got, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestDamaged flips one bit of the weights, with and without a checksum.
func TestDamaged(t *testing.T) {
	c := Checkpoint{Weights: []*tensor.Dense{matrix(3, 2), matrix(2, 10)}}
	path := filepath.Join(t.TempDir(), fileName)
	must.OK(t, c.Save(path))
	whole := must.Read(t, path)
	elements := 4 * (3*2 + 2*10)
	for _, at := range []int{len(whole) - elements, len(whole) - 50, len(whole) - 1} {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x10
		traintest.Write(t, path, string(damaged))
		if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+": the weights are damaged: their CRC-32C is ") {
			t.Errorf("byte %d of %d: %v", at, len(whole), err)
		}
	}
	older := []namedTensor{{"0.weight", []int{2, 3}, make([]float32, 6)}, {"2.weight", []int{10, 2}, make([]float32, 20)}}
	must.OK(t, writeFile(path, older, map[string]string{"epoch": "1", "step": "2"}))
	if got, err := Load(path); err != nil || got.Epoch != 1 || got.Step != 2 {
		t.Errorf("an older file: %+v, %v", got, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	at := map[string]string{"epoch": "1", "step": "0"}
	ones := func(name string, shape ...int) namedTensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return namedTensor{name, shape, make([]float32, n)}
	}
	for _, c := range []struct {
		name     string
		tensors  []namedTensor
		metadata map[string]string
		want     string
	}{
		{"no metadata", []namedTensor{ones("0.weight", 2, 2), ones("2.weight", 2, 2)}, nil, `"" as epoch`},
		{"negative", nil, map[string]string{"epoch": "1", "step": "-1"}, `"-1" as step`},
		{"a bias", []namedTensor{ones("0.weight", 2, 2), ones("0.bias", 2)}, at, "want a matrix 2.weight"},
		{"a vector", []namedTensor{ones("0.weight", 2), ones("2.weight", 2, 2)}, at, "want a matrix 0.weight"},
		{"misfit", []namedTensor{ones("0.weight", 3, 5), ones("2.weight", 10, 4)}, at, "2.weight takes 4 inputs from a layer of 3"},
		{"one layer", []namedTensor{ones("0.weight", 3, 5)}, at, "the number of layers is 1"},
		{"none", nil, at, "the number of layers is 0"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		must.OK(t, writeFile(path, c.tensors, c.metadata))
		if _, err := Load(filepath.Join(dir, fileName)); err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, fileName)); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, fileName)+": no weights") {
		t.Errorf("an empty folder: %v", err)
	}
	must.OK(t, os.Mkdir(filepath.Join(dir, fileName), 0o777))
	if _, err := Load(filepath.Join(dir, fileName)); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a folder in place of the file: %v", err)
	}
}

// FuzzLoad takes any file: it is refused, or saved again as it was loaded.
func FuzzLoad(f *testing.F) {
	for _, metadata := range []map[string]string{
		{"epoch": "3", "step": "0"},
		{"epoch": "+1", "step": "007", "format": "tf", "crc32c": "e698e1d1", "train.seed": "\u2028"},
		{"epoch": "1", "step": "99999999999999999999"},
	} {
		var b bytes.Buffer
		must.OK(f, writeSafetensors(&b, []namedTensor{{"0.weight", []int{2, 1}, make([]float32, 2)}, {"2.weight", []int{1, 2}, []float32{1, 2}}}, metadata))
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		path := filepath.Join(t.TempDir(), fileName)
		traintest.Write(t, path, string(file))
		c, err := Load(path)
		if err != nil {
			if !strings.HasPrefix(err.Error(), path+": ") || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error %q", err)
			}
			return
		}
		var saved [2][]byte
		for i := range saved {
			err := c.Save(path)
			if err == nil {
				saved[i], err = os.ReadFile(path)
			}
			if err == nil {
				c, err = Load(path)
			}
			must.OK(t, err)
		}
		if !bytes.Equal(saved[0], saved[1]) {
			t.Errorf("%q is loaded as what is saved as %q", saved[0], saved[1])
		}
	})
}
