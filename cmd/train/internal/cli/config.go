package cli

import (
	"context"
	"fmt"
	"os"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/run"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

// A reading is the earlier run and the config that a command line names, or why they cannot be
// read.
type reading struct {
	from *run.Earlier // nil: there is none
	cfg  configs.Config
	err  error
}

// Read returns the run to resume, if any, and the config. It reads them at the first call: standard
// input can be read only once.
func (o *Options) Read(ctx context.Context) (from *run.Earlier, cfg configs.Config, err error) {
	if o.reading == nil {
		one, given := new(reading), *o // a copy of the options, since f may still read them after Await has returned
		if one.from, one.err = exit.Await(ctx, given.earlier); one.err == nil {
			from := one.from
			one.cfg, one.err = exit.Await(ctx, func() (configs.Config, error) { return given.load(from) })
		}
		o.reading = one
	}
	return o.reading.from, o.reading.cfg, o.reading.err
}

// earlier returns the run to resume; nil: none.
func (o Options) earlier() (*run.Earlier, error) {
	if o.resume == "" {
		return nil, nil
	}
	return run.OpenEarlier(o.resume, o.WeightsFile())
}

// WeightsFile returns the name of the file of weights to read from an earlier run.
func (o Options) WeightsFile() string {
	if o.best {
		return rundir.BestFile
	}
	return rundir.WeightsFile
}

// load reads the config, which is that of the run to resume if there is one, with the settings.
func (o Options) load(from *run.Earlier) (configs.Config, error) {
	switch {
	case from != nil:
		return configs.Load(from.Run.Config(), o.Set...)
	case o.config == "" && o.Data:
		return configs.Parse("no config", nil, o.Set...)
	}
	if info, err := os.Stat(o.config); err == nil && info.IsDir() {
		if o.Report != "" {
			_, err := rundir.Open(o.config) // says which folder was meant
			return configs.Config{}, err
		}
		return configs.Config{}, fmt.Errorf("%s is a folder: name a TOML file, as in train configs/mnist.toml", o.config)
	}
	return configs.Load(o.config, o.Set...)
}
