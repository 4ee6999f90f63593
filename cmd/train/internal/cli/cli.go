// Package cli parses the command line, and answers what needs no training: help, lists, the
// version, and completion in shells.
//
// Every combination of flags is either meaningful or an error that says which flag to leave out.
// Errors are one line and suggest the word that was probably meant.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/run"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

// Options are the command line.
type Options struct {
	run.Options
	config     string   // the path of a config, or - for standard input
	Runs       []string // folders of earlier runs, in place of a config
	Set        []string
	resume     string   // the folder of a run
	best       bool     // use the weights of the run's lowest validation loss
	Predict    []string // pictures, IDX files of images, or testSet
	Data       bool
	list       bool
	version    bool
	completion string   // a shell
	reading    *reading // nil: nothing is read yet
}

// Parse parses a command line, in which flags may follow the config. It prints help to stdout and
// returns flag.ErrHelp.
func Parse(args []string, stdout io.Writer) (o Options, err error) {
	flags, groups := o.define()
	var paths []string
	for len(args) > 0 {
		if err = flags.Parse(args); errors.Is(err, flag.ErrHelp) {
			printUsage(stdout, groups)
		}
		if err != nil {
			return o, unknownFlag(flags, err)
		}
		if args = flags.Args(); len(args) > 0 {
			paths, args = append(paths, args[0]), args[1:]
		}
	}
	var given []string
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() != "false" && (f.Name != "compare" || o.Compare) {
			given = append(given, "-"+f.Name)
		}
	})
	return o, o.takePaths(paths, given)
}

// inPlace are the flags that replace the training, and the flags that may accompany each.
var inPlace = []struct {
	flag string
	with []string
}{
	{"-list", nil},
	{"-version", nil},
	{"-completion", nil},
	{"-predict", []string{"-set", "-best", "-json"}},
	{"-report of earlier runs", nil},
	{"-data", []string{"-set", "-resume", "-best"}},
	{"-export", []string{"-set"}},
	{"-check", []string{"-set", "-resume", "-best", "-compare", "-until", "-csv", "-report"}},
}

// clash returns an error if one of the given flags would have no effect.
func (o *Options) clash(given []string) error {
	if i := slices.Index(given, "-report"); i >= 0 && len(o.Runs) > 0 && o.Predict == nil {
		given[i] = "-report of earlier runs"
	}
	for _, p := range inPlace {
		if !slices.Contains(given, p.flag) {
			continue
		}
		for _, other := range given {
			if other != p.flag && !slices.Contains(p.with, other) {
				return fmt.Errorf("%s and %s do not go together: leave one out", p.flag, other)
			}
		}
	}
	if o.Predict != nil && !slices.Contains(o.Predict, predict.TestSet) && o.Set != nil {
		return fmt.Errorf("-set is for -predict %s, which takes its data from the config: leave it out", predict.TestSet)
	}
	if o.best && o.resume == "" && o.Predict == nil {
		return errors.New("-best chooses weights of an earlier run: add -resume or -predict, or leave it out")
	}
	if o.Until.Percent > 0 && !o.Compare {
		return errors.New("-until is for a comparison: add -compare, or leave it out")
	}
	if o.resume != "" && o.Compare {
		return errors.New("-resume continues one run: leave -compare out, and choose the allocator with " + backend.AllocatorEnv)
	}
	return nil
}

// takePaths tells folders of runs from configs, and checks that they go with the given flags.
func (o *Options) takePaths(paths, flags []string) error {
	var files []string
	for _, path := range paths {
		if rundir.IsRun(path) {
			o.Runs = append(o.Runs, path)
		} else {
			files = append(files, path)
		}
	}
	if o.Predict != nil {
		if n := len(files); len(o.Runs) == 0 && n > 0 { // the error of opening it says why it is not a run
			o.Runs, files = files[n-1:], files[:n-1]
		}
		o.Predict, files = append(o.Predict, files...), nil
	}
	if err := o.clash(flags); err != nil {
		return err
	}
	if err := o.checkValues(); err != nil {
		return err
	}
	switch {
	case slices.Contains(paths, ""):
		return errors.New("the name of a config, or of a run, is empty")
	case o.list || o.version || o.completion != "":
		if len(paths) > 0 {
			return fmt.Errorf("what is %s for? -list, -version and -completion take no config", paths[0])
		}
		return nil
	case o.Predict != nil && len(o.Runs) != 1:
		return fmt.Errorf("-predict takes the folder of one run, not %d: train -predict %s logs/mnist/latest", len(o.Runs), strings.Join(o.Predict, " "))
	case o.Predict != nil:
		return nil
	case o.resume != "" && len(paths) > 0:
		return fmt.Errorf("-resume takes the config of its run: leave %s out, and change keys with -set", paths[0])
	case len(files) > 1 && o.Compare && o.Among == nil && isSubjects(files[0]):
		return fmt.Errorf("-compare takes its list after an equals sign: train -compare=%s %s", files[0], files[1])
	case len(files) > 1:
		return fmt.Errorf("one config at a time: %s or %s?", files[0], files[1])
	case len(o.Runs) > 0 && o.Report == "":
		return fmt.Errorf("%s is the folder of a run: train -report, -resume and -predict take one", o.Runs[0])
	case len(o.Runs) > 0 && len(files) > 0:
		return fmt.Errorf("-report takes runs or a config: leave %s or %s out", o.Runs[0], files[0])
	case len(files) > 0:
		o.config = files[0]
	case len(o.Runs) == 0 && o.resume == "" && !o.Data:
		return errors.New("which config? try: train configs/mnist.toml (train -help says more)")
	}
	return nil
}

// checkValues returns the errors of settings, or of a list of allocators.
func (o *Options) checkValues() error {
	var wrong configs.Errors
	for _, setting := range o.Set {
		if err := configs.CheckSetting(setting); err != nil {
			wrong = append(wrong, err)
		}
	}
	if wrong != nil {
		return wrong
	}
	for _, name := range o.Among {
		if _, err := backend.ParseSubject(name); err != nil {
			return fmt.Errorf("-compare=%s: %w", name, err)
		}
	}
	return nil
}

// isSubjects reports whether a word is a list of allocators.
func isSubjects(word string) bool {
	return !slices.ContainsFunc(strings.Split(word, ","), func(name string) bool {
		_, err := backend.ParseSubject(name)
		return err != nil
	})
}

// Trains reports whether the options ask for a training.
func (o Options) Trains() bool {
	return o.InfoCommand() == nil && !o.Check && !o.Data && o.Export == "" && o.Predict == nil && len(o.Runs) == 0
}

// CheckRanks returns an error if several ranks cannot do what the options ask for.
func (o Options) CheckRanks(ranks int) error {
	for _, f := range []struct {
		name string
		set  bool
	}{{"-compare", o.Compare}, {"-report", o.Report != ""}} {
		if f.set {
			return fmt.Errorf("%s is for one GPU, and this is one of %d ranks: leave it out", f.name, ranks)
		}
	}
	return nil
}
