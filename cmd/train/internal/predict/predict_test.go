package predict

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/internal/must"
)

// oneOf returns a perceptron that predicts the brightest of the first three pixels.
func oneOf(pixels int) Perceptron {
	first, second := make([]float32, pixels*3), make([]float32, 9)
	for i := range 3 {
		first[3*i+i], second[3*i+i] = 2, 5
	}
	return Perceptron{Weights: []*tensor.Dense{
		tensor.New(tensor.WithShape(pixels, 3), tensor.WithBacking(first)),
		tensor.New(tensor.WithShape(3, 3), tensor.WithBacking(second)),
	}}
}

func images(pixels int, data ...uint8) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(data)/pixels, pixels), tensor.WithBacking(data))
}

// TestPredict compares with numbers computed by hand, over more than one batch.
func TestPredict(t *testing.T) {
	p := oneOf(4)
	var pixels, labels []uint8
	for i := range 2*batchRows + 7 {
		image := []uint8{0, 51, 0, 255}
		image[i%3] = 255
		pixels, labels = append(pixels, image...), append(labels, uint8(i%3))
	}
	set := images(4, pixels...)
	r, err := p.Predict(t.Context(), set)
	must.OK(t, err)
	if len(r.Predictions) != len(labels) || len(r.Probabilities) != 3*len(labels) {
		t.Fatalf("%d predictions and %d probabilities of %d images", len(r.Predictions), len(r.Probabilities), len(labels))
	}
	sum := 0.0
	for i, label := range labels {
		logits := []float64{0, 2, 0} // 51/255 times 2 times 5
		logits[label] = 10
		of := 0.0
		for _, v := range logits {
			of += math.Exp(v)
		}
		want := math.Exp(10) / of
		if r.Predictions[i] != int(label) || math.Abs(float64(r.Probability(i))-want) > 1e-6 {
			t.Fatalf("image %d: %d with %v, want %d with %v", i, r.Predictions[i], r.Probability(i), label, want)
		}
		sum -= math.Log(want)
	}
	loss, err := p.Loss(t.Context(), set, tensor.New(tensor.WithShape(len(labels)), tensor.WithBacking(labels)))
	if want := sum / float64(len(labels)); err != nil || math.Abs(loss-want) > 1e-6 {
		t.Errorf("loss %v, want %v (%v)", loss, want, err)
	}
}

func TestPredictRefuses(t *testing.T) {
	if _, err := oneOf(4).Predict(t.Context(), images(3, 1, 2, 3)); err == nil || err.Error() != "images of 3 pixels, and the model takes 4" {
		t.Errorf("other pixels: %v", err)
	}
	p := oneOf(4)
	p.Weights[1].Float32s()[0] = float32(math.NaN())
	if _, err := p.Predict(t.Context(), images(4, 1, 2, 3, 4)); err == nil || err.Error() != "image 1: the weights give NaN" {
		t.Errorf("NaN: %v", err)
	}
	for _, w := range p.Weights { // their products exceed float32
		copy(w.Float32s(), slices.Repeat([]float32{1e25}, w.Size()))
	}
	if r, err := p.Predict(t.Context(), images(4, 255, 255, 255, 255)); err == nil {
		t.Errorf("infinite: %+v", r)
	}
}

func TestConfusion(t *testing.T) {
	c := Confuse([]int{0, 1, 1, 2, 2, 2}, []uint8{0, 1, 2, 2, 2, 2}, 3)
	if c.Accuracy() != 5.0/6 {
		t.Errorf("accuracy %v", c.Accuracy())
	}
	var text bytes.Buffer
	must.OK(t, c.WriteText(&text))
	want := "label\\prediction 0 1 2\n0 1 0 0\n1 0 1 0\n2 0 1 3\n"
	var got strings.Builder
	for line := range strings.Lines(text.String()) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	if got.String() != want {
		t.Errorf("\n%s", text.String())
	}
	if err := c.WriteText(full{}); err == nil {
		t.Error("no error on a full disk")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }
