package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/exit"
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

// A flagGroup is flags that the usage text has under one title, by name.
type flagGroup struct {
	title string
	flags []*flag.Flag
}

// define returns the flags that set o. What a flag's value is stands in back quotes in
// its text: completion goes by that.
func (o *Options) define() (*flag.FlagSet, []flagGroup) {
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	var groups []flagGroup
	seen := map[string]bool{}
	group := func(title string) { // of the flags since the last call
		g := flagGroup{title: title}
		f.VisitAll(func(f *flag.Flag) {
			if !seen[f.Name] {
				g.flags = append(g.flags, f)
			}
			seen[f.Name] = true
		})
		groups = append(groups, g)
	}

	take := func(name, usage string, set func(path string)) { // empty, as of an unset variable, it is not as if it were not given
		f.Func(name, usage, func(path string) error {
			switch path {
			case "":
				return errors.New("want the name of a file or folder")
			case "-":
				return errors.New("want a file name; for standard input or output use /dev/stdin or /dev/stdout")
			}
			set(path)
			return nil
		})
	}
	path := func(p *string, name, usage string) { take(name, usage, func(path string) { *p = path }) }

	f.Func("set", "change a key of the config: `KEY=VALUE`, as in train.bsz=128; may be repeated", func(s string) error {
		o.Set = append(o.Set, s)
		return nil
	})
	f.Var(comparison{o}, "compare", "train on every allocator, or on those of `LIST`, such as custom,cuda,custom:bestfit; they take turns epoch by epoch, and are printed side by side")
	f.Func("until", fmt.Sprintf("let -compare go on after num_epochs until each allocator's time, as a ratio to the first's, is known to within `PERCENT`, as in 1%%; it ends after %d epochs, or those behind a comma, as in 1%%,200", compare.UntilEpochs), o.Until.Set)
	path(&o.resume, "resume", "go on with the run in the folder `RUN`, by its own config")
	f.BoolVar(&o.best, "best", false, "with -resume or -predict: take the weights of the run's lowest validation loss, not its last ones")
	group("what to train")

	f.BoolVar(&o.Check, "check", false, "check the config, print every key of it as TOML, and end")
	f.BoolVar(&o.Data, "data", false, "print where the config's data set lies, and end; without a config: MNIST's")
	path(&o.Export, "export", "write initial weights, batch orders and run.json to `DIR` for tools/torch_comparison.py, and end")
	f.BoolVar(&o.JSON, "json", false, "print the results as one JSON document on standard output, and all else on standard error")
	path(&o.CSV, "csv", "write the results as a CSV to `FILE`, a row for each allocator")
	take("predict", "classify `IMAGE`, and those after it, with the weights of the run whose folder takes the config's place: a PNG, a JPEG, an IDX file of images, or test, the test set", func(path string) {
		o.Predict = append(o.Predict, path)
	})
	path(&o.Report, "report", "write an HTML page to `FILE`: of this training, or of the runs whose folders take the config's place")
	group("in place of training, or beside it")

	f.BoolVar(&o.list, "list", false, "list allocators and strategies, and which of them this machine can use")
	f.BoolVar(&o.version, "version", false, "print the version, and what it was built with")
	f.Func("completion", "print a script that completes command lines in `SHELL`: bash, zsh or fish", func(shell string) error {
		o.completion = shell
		if !slices.Contains(shells, shell) {
			return errors.New("want " + strings.Join(shells, " or "))
		}
		return nil
	})
	group("about the program")
	return f, groups
}

// Parse takes flags before and after the config's path. Help that is asked for
// goes to stdout.
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
		if !isSwitch(f) || f.Value.String() != "false" {
			given = append(given, "-"+f.Name)
		}
	})
	return o, o.takePaths(paths, given)
}

// unknownFlag is the error of a flag that there is not, with the one that may be meant, or
// any other as it is.
func unknownFlag(flags *flag.FlagSet, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return err
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if i := configs.Nearest(name, names); i >= 0 {
		return fmt.Errorf("unknown flag -%s, did you mean -%s? train -help lists all", name, names[i])
	}
	return fmt.Errorf("unknown flag -%s: train -help lists all", name)
}

// inPlace are the flags in whose place there is no training, and those that each goes with.
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

// clash returns an error if of the flags that were given one would not count.
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
		return errors.New("-resume goes on with one run: leave -compare out, and choose the allocator with " + backend.AllocatorEnv)
	}
	return nil
}

// takePaths sorts the arguments that are no flags, folders of runs and files of configs, and
// checks what goes with which of the flags that were given.
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
		if n := len(files); len(o.Runs) == 0 && n > 0 { // which it is not, or not any more, is said when it is opened
			o.Runs, files = files[n-1:], files[:n-1]
		}
		o.Predict, files = append(o.Predict, files...), nil
	}
	if err := o.clash(flags); err != nil {
		return err
	}
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
		return fmt.Errorf("-compare takes its list behind an equals sign: train -compare=%s %s", files[0], files[1])
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

// isSubjects says whether a word lists allocators.
func isSubjects(word string) bool {
	return !slices.ContainsFunc(strings.Split(word, ","), func(name string) bool {
		_, err := backend.ParseSubject(name)
		return err != nil
	})
}

// A reading is the earlier run and the config that a command line names, or why they cannot be read.
type reading struct {
	from *run.Earlier // nil: there is none
	cfg  configs.Config
	err  error
}

// Read reads them at the first call: standard input has a config only once.
func (o *Options) Read(ctx context.Context) (from *run.Earlier, cfg configs.Config, err error) {
	if o.reading == nil {
		one, given := new(reading), *o // a copy: what await gives up on still reads it
		if one.from, one.err = exit.Await(ctx, given.earlier); one.err == nil {
			from := one.from
			one.cfg, one.err = exit.Await(ctx, func() (configs.Config, error) { return given.load(from) })
		}
		o.reading = one
	}
	return o.reading.from, o.reading.cfg, o.reading.err
}

// earlier returns the run to resume; nil: there is none.
func (o Options) earlier() (*run.Earlier, error) {
	if o.resume == "" {
		return nil, nil
	}
	return run.OpenEarlier(o.resume, o.WeightsFile())
}

// WeightsFile is the name of the file of weights to read from an earlier run.
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

// comparison is the flag -compare, with or without a list of allocators.
type comparison struct{ o *Options }

func (comparison) IsBoolFlag() bool { return true }
func (c comparison) String() string { return strconv.FormatBool(c.o != nil && c.o.Compare) }

func (c comparison) Set(value string) error {
	compare, err := strconv.ParseBool(value)
	c.o.Compare = compare || err != nil
	c.o.Among = nil
	if err != nil {
		c.o.Among = strings.Split(value, ",")
	}
	return nil
}

// Trains says whether the options ask for a training.
func (o Options) Trains() bool {
	return o.InfoCommand() == nil && !o.Check && !o.Data && o.Export == "" && o.Predict == nil && len(o.Runs) == 0
}

// CheckRanks returns an error if several ranks cannot do what is asked for.
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
