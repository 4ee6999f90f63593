// Package predict classifies images on the host with the weights of a run.
//
// It computes by code of its own, and agrees with the model that was trained to the last printed
// digit. Images are an IDX file, the test set, or pictures of any size, which are made to look like
// the images of the data set.
package predict

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"mlpool/kernels/ref"
)

// batchRows is the number of images in a batch: the outputs of a layer then take a few MiB.
const batchRows = 1000

// A Perceptron is weights, float32 of shape [inputs, outputs], with a ReLU after each
// layer but the last.
type Perceptron struct {
	Weights []*tensor.Dense
}

// Inputs returns the number of pixels of an image.
func (p Perceptron) Inputs() int { return p.Weights[0].Shape()[0] }

// Classes returns the number of classes.
func (p Perceptron) Classes() int { return p.Weights[len(p.Weights)-1].Shape()[1] }

// Result is what a perceptron predicts for images.
type Result struct {
	Classes       int
	Probabilities []float32 // [images, classes], a row each
	Predictions   []int     // of each image, the class of the highest probability
}

// Probability returns the probability of an image's prediction.
func (r Result) Probability(image int) float32 {
	return r.Probabilities[image*r.Classes+r.Predictions[image]]
}

// Predict classifies images, uint8 of shape [images, pixels], 0 for background. It returns an error
// if they do not have p's number of pixels, if the weights give NaN, or if ctx is cancelled.
func (p Perceptron) Predict(ctx context.Context, images *tensor.Dense) (Result, error) {
	r := Result{Classes: p.Classes()}
	err := p.batches(ctx, images, func(x []float32, first, rows, width int) error {
		logits := make([]float32, rows*r.Classes)
		ref.GEMM(false, false, 1, x, p.Weights[len(p.Weights)-1].Float32s(), 0, logits, rows, r.Classes, width)
		probabilities := make([]float32, len(logits))
		ref.Softmax(probabilities, logits, rows, r.Classes)
		for i := range rows {
			row := logits[i*r.Classes : (i+1)*r.Classes]
			// An infinite logit has no probability either.
			if slices.ContainsFunc(probabilities[i*r.Classes:(i+1)*r.Classes], func(v float32) bool { return math.IsNaN(float64(v)) }) {
				return fmt.Errorf("image %d: the weights give NaN", first+i+1)
			}
			r.Predictions = append(r.Predictions, slices.Index(row, slices.Max(row)))
		}
		r.Probabilities = append(r.Probabilities, probabilities...)
		return nil
	})
	return r, err
}

// Loss returns the mean cross-entropy of images against their labels, uint8 of shape [images], in
// nats, computed as a validation computes it.
func (p Perceptron) Loss(ctx context.Context, images, labels *tensor.Dense) (float64, error) {
	sum := 0.0
	err := p.batches(ctx, images, func(x []float32, first, rows, width int) error {
		losses, correct := make([]float32, rows), make([]float32, rows)
		ref.Classifier(nil, nil, losses, correct, x, p.Weights[len(p.Weights)-1].Float32s(), labels.Uint8s()[first:first+rows], identity(0, rows), rows, p.Classes(), width)
		for _, l := range losses {
			sum += float64(l)
		}
		return nil
	})
	return sum / float64(images.Shape()[0]), err
}

// batches calls f with the input of the last layer, [rows, width], of one batch after another.
func (p Perceptron) batches(ctx context.Context, images *tensor.Dense, f func(x []float32, first, rows, width int) error) error {
	n, pixels := images.Shape()[0], images.Shape()[1]
	if pixels != p.Inputs() {
		return fmt.Errorf("images of %d pixels, and the model takes %d", pixels, p.Inputs())
	}
	for first := 0; first < n; first += batchRows {
		rows := min(batchRows, n-first)
		x, width := make([]float32, rows*pixels), pixels
		ref.Images(x, images.Uint8s(), identity(first, rows), rows, pixels)
		for i := range x {
			x[i] /= 255
		}
		for _, w := range p.Weights[:len(p.Weights)-1] {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			outputs := w.Shape()[1]
			y := make([]float32, rows*outputs)
			ref.GEMM(false, false, 1, x, w.Float32s(), 0, y, rows, outputs, width)
			ref.Activate(y, y, len(y))
			x, width = y, outputs
		}
		if err := f(x, first, rows, width); err != nil {
			return err
		}
	}
	return nil
}

// identity returns n indices from first on.
func identity(first, n int) []int32 {
	indices := make([]int32, n)
	for i := range indices {
		indices[i] = int32(first + i)
	}
	return indices
}
