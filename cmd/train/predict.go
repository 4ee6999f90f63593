package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
)

const (
	// testSet is what -predict calls the test set of a run's config.
	testSet = "test"
	// confusionFile is what the picture of a confusion matrix is called in a run's folder.
	confusionFile = "confusion.png"
	// predictLines is of how many images there is a line each.
	predictLines = 20
	barWidth     = 40
)

// predictWith prints what the weights of a run say of a picture, of an IDX file of
// images, or of the test set. It computes on the CPU, whatever the run was on.
func predictWith(ctx context.Context, o options, stdout, stderr io.Writer) error {
	dir := o.runs[0]
	run, err := rundir.Open(dir)
	if err != nil {
		return err
	}
	saved, err := checkpoint.Load(filepath.Join(dir, rundir.WeightsFile))
	if err != nil {
		return err
	}
	p := predict.Perceptron(saved.Weights)
	if p.Classes() != data.Classes {
		return fmt.Errorf("%s: a model of %d classes, want %d", dir, p.Classes(), data.Classes)
	}
	if o.predict == testSet {
		cfg, err := configs.Load(run.Config(), o.set...)
		if err != nil {
			return err
		}
		set, err := loadData(ctx, cfg, stderr)
		if err != nil {
			return err
		}
		return predictAll(ctx, p, set.Test.Images, set.Test.Labels, "test set", dir, stdout)
	}
	return predictFile(ctx, p, o.predict, dir, stdout)
}

// predictFile tells a PNG and an IDX file apart by what is in them.
func predictFile(ctx context.Context, p predict.Perceptron, path, dir string, stdout io.Writer) error {
	text, err := await(ctx, func() ([]byte, error) { return os.ReadFile(path) })
	if interrupted(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: -predict takes a PNG, an IDX file of images, or %s", err, testSet)
	}
	switch {
	case bytes.HasPrefix(text, []byte("\x89PNG")):
		return predictPicture(ctx, p, path, text, stdout)
	case !bytes.HasPrefix(text, []byte{0, 0}) && !bytes.HasPrefix(text, []byte{0x1f, 0x8b}):
		return fmt.Errorf("%s: neither a PNG nor an IDX file of images", path)
	}
	images, err := data.ReadImages(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	labels, err := labelsBeside(path)
	if err != nil {
		return err
	}
	if labels != nil && labels.Shape()[0] != images.Shape()[0] {
		return fmt.Errorf("%s: %d images, and %d labels beside it", path, images.Shape()[0], labels.Shape()[0])
	}
	return predictAll(ctx, p, images, labels, path, dir, stdout)
}

// labelsBeside reads the file of labels that belongs to one of images by its name, with
// or without .gz behind it; nil: there is none.
func labelsBeside(path string) (*tensor.Dense, error) {
	name := strings.Replace(filepath.Base(path), "images-idx3", "labels-idx1", 1)
	if name == filepath.Base(path) {
		return nil, nil
	}
	plain := filepath.Join(filepath.Dir(path), strings.TrimSuffix(name, ".gz"))
	for _, path := range []string{plain, plain + ".gz"} {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		labels, err := data.ReadLabels(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return labels, nil
	}
	return nil, nil
}

// predictPicture prints the probability of each class.
func predictPicture(ctx context.Context, p predict.Perceptron, path string, text []byte, stdout io.Writer) error {
	image, inverted, err := predict.ReadPicture(bytes.NewReader(text), p.Inputs())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r, err := p.Predict(ctx, image)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if inverted {
		fmt.Fprintf(stdout, "%s: dark ink on a white background, which is inverted: models train on white ink\n", path)
	}
	for class, probability := range r.Probabilities {
		bar := strings.Repeat("█", int(probability*barWidth+0.5))
		fmt.Fprintln(stdout, strings.TrimRight(fmt.Sprintf("%d  %6.2f %%  %s", class, 100*probability, bar), " "))
	}
	fmt.Fprintf(stdout, "prediction: %d\n", r.Predictions[0])
	return nil
}

// predictAll prints what is predicted of images and, where there are labels, how well,
// of which it draws a picture in dir too.
func predictAll(ctx context.Context, p predict.Perceptron, images, labels *tensor.Dense, name, dir string, stdout io.Writer) error {
	r, err := p.Predict(ctx, images)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n := len(r.Predictions)
	var counts [data.Classes]int
	for i, prediction := range r.Predictions {
		counts[prediction]++
		if i >= predictLines {
			continue
		}
		line := fmt.Sprintf("image %d: %d (%.2f %%)", i+1, prediction, 100*r.Probability(i))
		if labels != nil {
			line += fmt.Sprintf(", label %d", labels.Uint8s()[i])
		}
		fmt.Fprintln(stdout, line)
	}
	if n > predictLines {
		fmt.Fprintf(stdout, "and %d more\n", n-predictLines)
	}
	fmt.Fprint(stdout, "predictions of each class:")
	for class, count := range counts {
		fmt.Fprintf(stdout, "  %d: %d", class, count)
	}
	fmt.Fprintln(stdout)
	if labels == nil {
		return nil
	}
	loss, err := p.Loss(ctx, images, labels)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c := predict.Confuse(r.Predictions, labels.Uint8s(), data.Classes)
	fmt.Fprintf(stdout, "loss %.4f, accuracy %.2f %% of %d images\n\n", loss, 100*c.Accuracy(), n)
	var picture bytes.Buffer
	title := fmt.Sprintf("%s: %.2f %% of %d images right", filepath.Base(name), 100*c.Accuracy(), n)
	if err := errors.Join(c.WriteText(stdout), c.WritePNG(&picture, title)); err != nil {
		return err
	}
	path := filepath.Join(dir, confusionFile)
	if err := rundir.WriteFile(path, picture.Bytes()); err != nil {
		return fmt.Errorf("the confusion matrix cannot be drawn: %w", err)
	}
	fmt.Fprintf(stdout, "\npicture: %s\n", path)
	return nil
}
