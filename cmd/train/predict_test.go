package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/internal/must"
)

// trained trains on the small data set, and returns the folders of the run and of the data.
func trained(t *testing.T) (dir, dataDir string) {
	t.Helper()
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	cfg, err := configs.Load(path)
	must.OK(t, err)
	return trainAll(t, logDir, path), cfg.Data.DataDir
}

// TestPredictTestSet compares predictions for the test set with what the training logged.
func TestPredictTestSet(t *testing.T) {
	dir, dataDir := trained(t)
	records := recordsOf(t, dir)
	last := records[len(records)-1]
	file := filepath.Join(dataDir, "t10k-images-idx3-ubyte.gz")
	for _, what := range []string{predict.TestSet, file} {
		stdout := succeeds(t, "-predict", what, dir)
		for _, want := range []string{
			fmt.Sprintf("\nloss %.4f, accuracy %.2f %% of 70 images\n", last.ValLoss, 100*last.ValAcc),
			"\nand 50 more\npredictions of each class:  0: ", "image 20: ", ", label ", "label\\prediction",
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: no %q in:\n%s", what, want, stdout)
			}
		}
	}
	// Without a file of labels there is no accuracy.
	for _, name := range []string{"t10k-images-idx3-ubyte.gz", "my-digits"} {
		alone := filepath.Join(t.TempDir(), name)
		traintest.WriteIDX(t, alone, []uint32{2, 4, 4}, make([]byte, 32))
		code, stdout, stderr := train("-predict", alone, dir)
		if code != 0 || strings.Contains(stdout, "accuracy") || strings.Contains(stdout, " more") || strings.Count(stdout, "\n") != 3 {
			t.Errorf("%s: exit code %d, stderr %q, stdout:\n%s", name, code, stderr, stdout)
		}
	}
}

// writePicture writes a PNG of 40×40 pixels, with ink where a 4×4 image has the given pixel.
func writePicture(t *testing.T, path string, pixel int, background, ink color.Color) {
	t.Helper()
	m := image.NewNRGBA(image.Rect(0, 0, 40, 40))
	for y := range 40 {
		for x := range 40 {
			m.Set(x, y, background)
			if y/10*4+x/10 == pixel {
				m.Set(x, y, ink)
			}
		}
	}
	var b bytes.Buffer
	must.OK(t, png.Encode(&b, m))
	traintest.Write(t, path, b.String())
}

// TestPredictSeveral classifies several files. A blank one does not stop the others.
func TestPredictSeveral(t *testing.T) {
	dir, dataDir := trained(t)
	folder := t.TempDir()
	one, blank, two := filepath.Join(folder, "1.png"), filepath.Join(folder, "blank.png"), filepath.Join(folder, "2.png")
	writePicture(t, one, 6, color.Black, color.White)
	writePicture(t, blank, 6, color.White, color.White)
	writePicture(t, two, 3, color.White, color.Black)
	set := filepath.Join(dataDir, "t10k-images-idx3-ubyte.gz")
	args := []string{"-predict", one, blank, two, set, dir}
	code, stdout, stderr := train(args...)
	if want := "train: " + blank + ": the picture is blank\n"; code != exit.Failure || stderr != want {
		t.Errorf("exit code %d, stderr %q, want %q", code, stderr, want)
	}
	_, bar, _ := strings.Cut(stdout, "\n6  ")
	bar, _, _ = strings.Cut(bar, "\n")
	percent := 0.0
	if _, err := fmt.Sscan(bar, &percent); err != nil || strings.Count(bar, "█") != int(percent*40/100+0.5) {
		t.Errorf("a bar of 40 for 100 %%: %s (%v)", bar, err)
	}
	for _, want := range []string{one + ":\n0  ", "\nprediction: 6\n" + blank + ":\n" + two + ":\n" + two + ": dark ink on a white background, which is inverted: models train on white ink\n0  ", "\nprediction: 3\n" + set + ":\nimage 1: ", " % of 70 images\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	code, stdout, _ = train(append(args, "-json")...)
	var got []predict.Prediction
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exit.Failure || len(got) != 4 {
		t.Fatalf("exit code %d, %v:\n%s", code, err, stdout)
	}
	if p := got[0]; p.File != one || p.Class == nil || *p.Class != 6 || len(p.Probabilities) != 10 || p.Inverted || p.Error != "" {
		t.Errorf("%+v", p)
	}
	if p := got[1]; p.Class != nil || !strings.HasSuffix(p.Error, "is blank") {
		t.Errorf("%+v", p)
	}
	if p := got[2]; p.Class == nil || *p.Class != 3 || !p.Inverted {
		t.Errorf("%+v", p)
	}
	if p := got[3]; len(p.Classes) != 70 || p.Loss == nil || p.Accuracy == nil || p.Class != nil {
		t.Errorf("%+v", p)
	}
}

func TestPredictRefuses(t *testing.T) {
	dir, dataDir := trained(t)
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	writePicture(t, at("whole.png"), 1, color.Black, color.White)
	whole := must.Read(t, at("whole.png"))
	write := func(path string, text []byte) {
		traintest.Write(t, path, string(text))
	}
	write(at("half.png"), whole[:len(whole)/2])
	write(at("text"), []byte("seven"))
	write(at("short.gz"), []byte{0x1f, 0x8b, 8})
	traintest.WriteIDX(t, at("wide"), []uint32{2, 5, 5}, make([]byte, 50))
	traintest.WriteIDX(t, at("few-images-idx3-ubyte"), []uint32{2, 4, 4}, make([]byte, 32))
	traintest.WriteIDX(t, at("few-labels-idx1-ubyte"), []uint32{3}, make([]byte, 3))
	traintest.WriteIDX(t, at("bad-images-idx3-ubyte"), []uint32{1, 4, 4}, make([]byte, 16))
	write(at("bad-labels-idx1-ubyte"), []byte("no labels"))
	empty := t.TempDir()
	for _, c := range []struct{ what, dir, want string }{
		{at("half.png"), dir, "half.png: png: "},
		{at("text"), dir, "text: not a PNG, a JPEG or an IDX file of images"},
		{at("short.gz"), dir, "short.gz: "},
		{at("none"), dir, "no such file or directory: -predict takes a PNG, a JPEG, an IDX file of images, or test"},
		{at("wide"), dir, "wide: images of 25 pixels, and the model takes 16"},
		{at("few-images-idx3-ubyte"), dir, "2 images, and 3 labels next to it"},
		{at("bad-images-idx3-ubyte"), dir, "bad-labels-idx1-ubyte: labels: "},
		{at("whole.png"), empty, " is not the folder of a run: "},
	} {
		fails(t, exit.Failure, c.want, "-predict", c.what, c.dir)
	}
	// What is wrong with the run, from here on.
	refuses := func(want, what string) {
		t.Helper()
		fails(t, exit.Failure, want, "-predict", what, dir)
	}
	must.OK(t, os.RemoveAll(dataDir))
	refuses(dataDir, predict.TestSet)
	write(filepath.Join(dir, rundir.ConfigFile), []byte("x = 1\n"))
	refuses(rundir.ConfigFile+":1: ", predict.TestSet)
	must.OK(t, (checkpoint.Checkpoint{Weights: initialWeightsOf(16, 4, 3)}).Save(filepath.Join(dir, rundir.WeightsFile)))
	refuses("a model of 3 classes, want 10", predict.TestSet)
	must.OK(t, os.Remove(filepath.Join(dir, rundir.WeightsFile)))
	refuses("weights.safetensors: no weights", predict.TestSet)
}
