package predict

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/text"
)

const (
	// TestSet stands for the test set of a run's config.
	TestSet = "test"
	// predictLines is the number of images that get a line each.
	predictLines = 20
	barWidth     = 40
	// Every PNG begins with pngStart, every JPEG with jpegStart.
	pngStart  = "\x89PNG"
	jpegStart = "\xff\xd8\xff"
)

// A Prediction is what a run's weights predict for one picture, or for a set of images: an element
// of the JSON of -predict.
type Prediction struct {
	File string `json:"file"`
	// For a picture: its class, and the probability of each class.
	Class         *int      `json:"class,omitempty"`
	Probabilities []float32 `json:"probabilities,omitempty"`
	Inverted      bool      `json:"inverted,omitempty"` // dark ink on white
	// For a set: the class of each image and, if there are labels, loss and accuracy.
	Classes  []int    `json:"classes,omitempty"`
	Loss     *float64 `json:"loss,omitempty"`
	Accuracy *float64 `json:"accuracy,omitempty"` // 0 to 1
	Error    string   `json:"error,omitempty"`
}

// Options say what to classify.
type Options struct {
	Run     string   // the folder of a run
	Weights string   // the name of a file in it
	Set     []string // settings of its config
	Inputs  []string // pictures, IDX files of images, or testSet
	JSON    bool
}

// A predictor classifies with the weights of a run.
type predictor struct {
	Perceptron
	cfg            configs.Config
	stdout, stderr io.Writer
}

// Classify prints what the weights of a run predict for pictures, IDX files of images, or the test
// set. It computes on the CPU. An input that cannot be read does not stop the others.
func Classify(ctx context.Context, o Options, stdout, stderr io.Writer) error {
	p, err := exit.Await(ctx, func() (predictor, error) { return open(o) })
	if err != nil {
		return err
	}
	p.stdout, p.stderr = stdout, stderr
	if o.JSON { // standard output is for JSON alone
		p.stdout = io.Discard
	}
	var predictions []Prediction
	var errs []error
	for _, path := range o.Inputs {
		if len(o.Inputs) > 1 {
			fmt.Fprintf(p.stdout, "%s:\n", path)
		}
		result, err := p.predict(ctx, path)
		if exit.IsInterrupted(err) {
			return err
		}
		if err != nil {
			errs = append(errs, err)
			result = Prediction{Error: text.OneLine(err.Error())}
		}
		result.File = path
		predictions = append(predictions, result)
	}
	if o.JSON {
		errs = append(errs, rundir.PrintJSON(stdout, predictions))
	}
	return errors.Join(errs...)
}

// open reads the weights and the config of the run.
func open(o Options) (p predictor, err error) {
	run, err := rundir.First(o.Run)
	if err != nil {
		return p, err
	}
	saved, err := checkpoint.LoadWeights(run, o.Weights)
	if err != nil {
		return p, err
	}
	p.Weights = saved.Weights
	if p.Classes() != data.Classes {
		return p, fmt.Errorf("%s: a model of %d classes, want %d", run.Dir, p.Classes(), data.Classes)
	}
	p.cfg, err = configs.Load(run.Config(), o.Set...)
	return p, err
}

// predict classifies a file, or the test set.
func (p predictor) predict(ctx context.Context, path string) (Prediction, error) {
	if path == TestSet {
		set, err := dataset.Load(ctx, p.cfg, p.stderr)
		if err != nil {
			return Prediction{}, err
		}
		return p.predictAll(ctx, set.Test.Images, set.Test.Labels, "test set")
	}
	in, err := exit.Await(ctx, func() (input, error) { return readInput(path, p.Inputs(), p.cfg.Data.Dataset == "mnist") })
	if err != nil {
		return Prediction{}, err
	}
	if in.picture {
		return p.predictPicture(ctx, path, in)
	}
	return p.predictAll(ctx, in.images, in.labels, path)
}

// An input is the contents of a file.
type input struct {
	images, labels    *tensor.Dense // labels may be nil
	picture, inverted bool          // it is a picture; of dark ink on white
}

// readInput reads a picture or an IDX file, which it tells apart by their first bytes. digit says
// that the picture may be of a digit.
func readInput(path string, pixels int, digit bool) (in input, err error) {
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
	case string(start) == pngStart || bytes.HasPrefix(start, []byte(jpegStart)):
		in.picture = true
		in.images, in.inverted, err = ReadPicture(r, pixels, digit)
	case !bytes.HasPrefix(start, []byte{0, 0}) && !bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		err = errors.New("not a PNG, a JPEG or an IDX file of images")
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
		return in, fmt.Errorf("%s: %d images, and %d labels next to it", path, in.images.Shape()[0], in.labels.Shape()[0])
	}
	return in, nil
}

func notInput(err error) error {
	return fmt.Errorf("%w: -predict takes a PNG, a JPEG, an IDX file of images, or %s", err, TestSet)
}

// labelsBeside reads the labels for a file of images; nil: there are none.
func labelsBeside(images string) (*tensor.Dense, error) {
	path, err := data.LabelsBeside(images)
	if path == "" || err != nil {
		return nil, err
	}
	return data.ReadFile(path, data.ReadLabels)
}

// predictPicture prints the probability of each class.
func (p predictor) predictPicture(ctx context.Context, path string, in input) (Prediction, error) {
	r, err := p.Predict(ctx, in.images)
	if err != nil {
		return Prediction{}, fmt.Errorf("%s: %w", path, err)
	}
	if in.inverted {
		fmt.Fprintf(p.stdout, "%s: dark ink on a white background, which is inverted: models train on white ink\n", path)
	}
	for class, probability := range r.Probabilities {
		bar := strings.Repeat("█", int(probability*barWidth+0.5))
		fmt.Fprintln(p.stdout, strings.TrimRight(fmt.Sprintf("%d  %6.2f %%  %s", class, 100*probability, bar), " "))
	}
	fmt.Fprintf(p.stdout, "prediction: %d\n", r.Predictions[0])
	return Prediction{Class: &r.Predictions[0], Probabilities: r.Probabilities, Inverted: in.inverted}, nil
}

// predictAll prints the classes of images and, if there are labels, the confusion matrix.
func (p predictor) predictAll(ctx context.Context, images, labels *tensor.Dense, name string) (Prediction, error) {
	r, err := p.Predict(ctx, images)
	if err != nil {
		return Prediction{}, fmt.Errorf("%s: %w", name, err)
	}
	p.printPredictions(r, labels)
	result := Prediction{Classes: r.Predictions}
	if labels == nil {
		return result, nil
	}
	loss, err := p.Loss(ctx, images, labels)
	if err != nil {
		return Prediction{}, fmt.Errorf("%s: %w", name, err)
	}
	c := Confuse(r.Predictions, labels.Uint8s(), data.Classes)
	accuracy := c.Accuracy()
	result.Loss, result.Accuracy = &loss, &accuracy
	fmt.Fprintf(p.stdout, "loss %.4f, accuracy %.2f %% of %d images\n\n", loss, 100*accuracy, len(r.Predictions))
	return result, c.WriteText(p.stdout)
}

// printPredictions prints the first predictions, and the number of predictions of each class.
func (p predictor) printPredictions(r Result, labels *tensor.Dense) {
	var counts [data.Classes]int
	for i, class := range r.Predictions {
		counts[class]++
		if i >= predictLines {
			continue
		}
		line := fmt.Sprintf("image %d: %d (%.2f %%)", i+1, class, 100*r.Probability(i))
		if labels != nil {
			line += fmt.Sprintf(", label %d", labels.Uint8s()[i])
		}
		fmt.Fprintln(p.stdout, line)
	}
	if n := len(r.Predictions); n > predictLines {
		fmt.Fprintf(p.stdout, "and %d more\n", n-predictLines)
	}
	fmt.Fprint(p.stdout, "predictions of each class:")
	for class, count := range counts {
		fmt.Fprintf(p.stdout, "  %d: %d", class, count)
	}
	fmt.Fprintln(p.stdout)
}
