// Package checkpoint keeps the state of a training in a safetensors file, which PyTorch and
// other programs load as well.
//
// The weights have the names and the layout that a PyTorch model
//
//	nn.Sequential(nn.Linear(784, 128, bias=False), nn.ReLU(), nn.Linear(128, 10, bias=False))
//
// gives its own: 0.weight, 2.weight and on, float32 of shape [outputs, inputs]. The
// metadata says how far the training was, and what it depends on. Plain SGD has no
// other state, and the order of an epoch follows from its number and the seed.
package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"strconv"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/rundir"
)

// A Checkpoint is the state of a training after some steps.
type Checkpoint struct {
	// Weights are float32 of shape [inputs, outputs], from the first layer on.
	Weights []*tensor.Dense
	// Epoch is the number of complete epochs, Step the number of steps of the next one.
	Epoch, Step int
	// Settings are what the losses depend on, by name. The names epoch, step, format and crc32c are
	// taken.
	Settings map[string]string
}

// Keys of the metadata. Some programs want a format; PyTorch's is pt.
const (
	epochKey  = "epoch"
	stepKey   = "step"
	formatKey = "format"
	sumKey    = "crc32c" // of the elements of all tensors, in file order
)

// Save replaces the checkpoint in a file. If the process is killed or the machine stops, the file
// has the old or the new one. Only one process may write the file, and the one with .tmp appended.
func (c Checkpoint) Save(path string) error {
	metadata := map[string]string{}
	maps.Copy(metadata, c.Settings)
	metadata[epochKey], metadata[stepKey], metadata[formatKey] = strconv.Itoa(c.Epoch), strconv.Itoa(c.Step), "pt"
	var tensors []namedTensor
	for i, w := range c.Weights {
		inputs, outputs := w.Shape()[0], w.Shape()[1]
		tensors = append(tensors, namedTensor{name(i), []int{outputs, inputs}, transposed(w.Float32s(), inputs, outputs)})
	}
	sum, err := checksum(tensors)
	if err != nil {
		return err
	}
	metadata[sumKey] = sum
	temporary := path + ".tmp"
	if err := writeFile(temporary, tensors, metadata); err != nil {
		if failed := os.Remove(temporary); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
		return err
	}
	return os.Rename(temporary, path)
}

// checksum returns the CRC-32C of the elements of tensors.
func checksum(tensors []namedTensor) (string, error) {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if err := writeElements(sum, tensors); err != nil {
		return "", err
	}
	return fmt.Sprintf("%08x", sum.Sum32()), nil
}

// writeFile writes a file and returns once it is on the disk.
func writeFile(path string, tensors []namedTensor, metadata map[string]string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := writeSafetensors(f, tensors, metadata); err != nil {
		return err
	}
	return f.Sync()
}

// ErrNone says that a run has no such file of weights.
var ErrNone = errors.New("no weights: a run saves them when it ends, unless it diverged, and as train.checkpoint_every says; a comparison keeps no best ones")

// Load reads the checkpoint in a file. Its errors are one line that names the file.
func Load(path string) (Checkpoint, error) {
	c, err := load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("%s: %w", path, ErrNone)
	}
	var atPath *fs.PathError
	if err != nil && !errors.As(err, &atPath) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return c, err
}

func load(path string) (c Checkpoint, err error) {
	bytes, err := rundir.RegularSize(path)
	if err != nil {
		return c, err
	}
	f, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer f.Close()
	tensors, metadata, err := readSafetensors(f, bytes)
	if err != nil {
		return c, err
	}
	for _, number := range []struct {
		key string
		to  *int
	}{{epochKey, &c.Epoch}, {stepKey, &c.Step}} {
		if *number.to, err = strconv.Atoi(metadata[number.key]); err != nil || *number.to < 0 {
			return Checkpoint{}, fmt.Errorf("its metadata has %q as %s, want a number of them", metadata[number.key], number.key)
		}
		delete(metadata, number.key)
	}
	sum, err := checksum(tensors)
	if err != nil {
		return Checkpoint{}, err
	}
	if want, ok := metadata[sumKey]; ok && sum != want { // older files have no checksum
		return Checkpoint{}, fmt.Errorf("the weights are damaged: their CRC-32C is %s, and was %s when they were saved", sum, want)
	}
	delete(metadata, formatKey)
	delete(metadata, sumKey)
	c.Settings = metadata
	c.Weights, err = layers(tensors)
	return c, err
}

// layers returns the weights of a perceptron, in order.
func layers(tensors []namedTensor) (weights []*tensor.Dense, err error) {
	byName := map[string]namedTensor{}
	for _, t := range tensors {
		byName[t.Name] = t
	}
	for i := range tensors {
		t, ok := byName[name(i)]
		if !ok || len(t.Shape) != 2 {
			return nil, fmt.Errorf("want a matrix %s among its %d tensors", name(i), len(tensors))
		}
		outputs, inputs := t.Shape[0], t.Shape[1]
		if i > 0 && inputs != weights[i-1].Shape()[1] {
			return nil, fmt.Errorf("%s takes %d inputs from a layer of %d outputs", name(i), inputs, weights[i-1].Shape()[1])
		}
		weights = append(weights, tensor.New(tensor.WithShape(inputs, outputs), tensor.WithBacking(transposed(t.Data, outputs, inputs))))
	}
	if len(weights) < 2 {
		return nil, fmt.Errorf("want a hidden layer and a classifier at least, and the number of layers is %d", len(weights))
	}
	return weights, nil
}

// name returns the name of a layer's weights in nn.Sequential, where a ReLU stands between two
// layers.
func name(layer int) string { return strconv.Itoa(2*layer) + ".weight" }

// transposed returns the transpose of a matrix.
func transposed(from []float32, rows, cols int) []float32 {
	to := make([]float32, rows*cols)
	for i := range rows {
		for j, v := range from[i*cols : (i+1)*cols] {
			to[j*rows+i] = v
		}
	}
	return to
}
