package main

import (
	"bufio"
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
	// pngStart is what every PNG begins with.
	pngStart = "\x89PNG"
)

// predictWith prints what the weights of a run say of a picture, of an IDX file of
// images, or of the test set. It computes on the CPU, whatever the run was on.
func predictWith(ctx context.Context, o options, stdout, stderr io.Writer) error {
	run, err := rundir.First(o.runs[0])
	if err != nil {
		return err
	}
	dir := run.Dir
	saved, err := checkpoint.Load(filepath.Join(dir, o.weightsFile()))
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
		return predictAll(ctx, p, set.Test.Images, set.Test.Labels, "test set", dir, stdout, stderr)
	}
	return predictFile(ctx, p, o.predict, dir, stdout, stderr)
}

// predictFile predicts what is in a file: a picture or, where it is an IDX file, many.
func predictFile(ctx context.Context, p predict.Perceptron, path, dir string, stdout, stderr io.Writer) error {
	in, err := await(ctx, func() (input, error) { return readInput(path, p.Inputs()) })
	if err != nil {
		return err
	}
	if in.picture {
		return predictPicture(ctx, p, path, in, stdout)
	}
	return predictAll(ctx, p, in.images, in.labels, path, dir, stdout, stderr)
}

// An input is what a file has to predict.
type input struct {
	images, labels    *tensor.Dense // labels are nil where there are none
	picture, inverted bool          // it is a PNG; of dark ink on white
}

// readInput tells a PNG and an IDX file apart by what is in them.
func readInput(path string, pixels int) (in input, err error) {
	f, err := os.Open(path)
	if err != nil {
		return in, notInput(err)
	}
	defer f.Close()
	r := bufio.NewReader(f)
	start, err := r.Peek(len(pngStart))
	switch {
	case err != nil && err != io.EOF:
		return in, notInput(err)
	case string(start) == pngStart:
		in.picture = true
		in.images, in.inverted, err = predict.ReadPicture(r, pixels)
	case !bytes.HasPrefix(start, []byte{0, 0}) && !bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		err = errors.New("neither a PNG nor an IDX file of images")
	default:
		in.images, err = data.ReadImages(r)
	}
	if err != nil {
		return in, fmt.Errorf("%s: %w", path, err)
	}
	if in.picture {
		return in, nil
	}
	if in.labels, err = labelsBeside(path); err != nil {
		return in, err
	}
	if in.labels != nil && in.labels.Shape()[0] != in.images.Shape()[0] {
		return in, fmt.Errorf("%s: %d images, and %d labels beside it", path, in.images.Shape()[0], in.labels.Shape()[0])
	}
	return in, nil
}

func notInput(err error) error {
	return fmt.Errorf("%w: -predict takes a PNG, an IDX file of images, or %s", err, testSet)
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
func predictPicture(ctx context.Context, p predict.Perceptron, path string, in input, stdout io.Writer) error {
	r, err := p.Predict(ctx, in.images)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if in.inverted {
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
// of which it draws a picture in dir too: where that takes none, it says so on stderr.
func predictAll(ctx context.Context, p predict.Perceptron, images, labels *tensor.Dense, name, dir string, stdout, stderr io.Writer) error {
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
		_, err := fmt.Fprintf(stderr, "train: the confusion matrix is not drawn: %v\n", err)
		return err
	}
	fmt.Fprintf(stdout, "\npicture: %s\n", path)
	return nil
}
