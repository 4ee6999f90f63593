// Package dataset finds the data set that a config names, and writes what another program needs to
// train on it in the same way.
//
// Errors about the folder of a config name the key. A cancelled context ends a download before
// anything of an earlier run is replaced.
package dataset

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"text/tabwriter"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/model"
)

// Load loads the data set, with a bar on stderr for downloads.
func Load(ctx context.Context, cfg configs.Config, stderr io.Writer) (data.Dataset, error) {
	bar := terminal.NewDownloadBar(stderr)
	o := dataOptions(cfg)
	o.Progress = bar.Update
	var waited error
	o.Waiting = func(what string) { _, waited = fmt.Fprintf(stderr, "train: waiting for %s ...\n", what) }
	set, err := data.Load(ctx, o)
	if err := errors.Join(dataError(cfg, err), bar.Finish(), waited); err != nil {
		return set, err
	}
	if ctx.Err() != nil { // before anything of an earlier run is replaced
		return set, exit.ErrInterrupted
	}
	return set, nil
}

func dataOptions(cfg configs.Config) data.Options {
	return data.Options{Name: cfg.Data.Dataset, Dir: cfg.Data.DataDir}
}

// dataError adds the key data.data_dir to err if cfg sets it.
func dataError(cfg configs.Config, err error) error {
	if err == nil || cfg.Data.DataDir == "" {
		return err
	}
	return cfg.Errorf("data.data_dir", "%w", err)
}

// Print prints where the files of the data set are.
func Print(ctx context.Context, cfg configs.Config, stdout io.Writer) error {
	l, err := data.Locate(ctx, dataOptions(cfg))
	if err != nil {
		return dataError(cfg, err)
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if cfg.Data.DataDir == "" {
		l.Source += ", of " + cfg.Data.Dataset
	}
	fmt.Fprintf(w, "source: %s\n", l.Source)
	for _, f := range l.Files {
		fmt.Fprintf(w, "%s\t%d bytes\n", f.Path, f.Bytes)
	}
	return w.Flush()
}

// Describe tells data sets apart by their contents, wherever they lie.
func Describe(set data.Dataset) string {
	sum := uint32(0)
	for _, part := range [][]uint8{set.Train.Pixels(), set.Train.Targets(), set.Test.Pixels(), set.Test.Targets()} {
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), part)
	}
	return fmt.Sprintf("%d and %d images of %d pixels, CRC-32C %08x", set.Train.Len(), set.Test.Len(), set.Train.Features(), sum)
}

// InitialWeights returns the weights that a training starts from.
func InitialWeights(cfg configs.Config, set data.Dataset) []*tensor.Dense {
	return model.Weights(set.Train.Features(), cfg.Model.FeatDim, cfg.Model.NumLayers, data.Classes, cfg.Train.Seed)
}
