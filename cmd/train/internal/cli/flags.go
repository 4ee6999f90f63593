package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"mlpool/cmd/train/internal/compare"
	"mlpool/configs"
	"mlpool/internal/completion"
)

// A flagGroup is the flags under one title of the usage, by name.
type flagGroup struct {
	title string
	flags []*flag.Flag
}

// flagSet is flags in groups.
type flagSet struct {
	*flag.FlagSet
	groups []flagGroup
	seen   map[string]bool
}

// group makes a group of the flags that were defined since the last call.
func (f *flagSet) group(title string) {
	g := flagGroup{title: title}
	f.VisitAll(func(flag *flag.Flag) {
		if !f.seen[flag.Name] {
			g.flags = append(g.flags, flag)
		}
		f.seen[flag.Name] = true
	})
	f.groups = append(f.groups, g)
}

// path defines a flag whose value is the name of a file or folder. An empty value, as from an unset
// variable, is an error.
func (f *flagSet) path(name, usage string, set func(path string)) {
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

// define returns the flags that set o. In a flag's usage the name of its value stands in back quotes;
// completion depends on these names.
func (o *Options) define() (*flag.FlagSet, []flagGroup) {
	f := &flagSet{FlagSet: flag.NewFlagSet("train", flag.ContinueOnError), seen: map[string]bool{}}
	f.SetOutput(io.Discard)

	f.Func("set", "change a key of the config: `KEY=VALUE`, as in train.bsz=128; may be repeated", func(s string) error {
		o.Set = append(o.Set, s)
		return nil
	})
	f.BoolFunc("compare", "train on every allocator, or on those of `LIST`, such as custom,cuda,custom:bestfit; they take turns epoch by epoch, and are printed side by side; one that is named twice shows how much is noise", func(value string) error {
		compare, err := strconv.ParseBool(value)
		o.Compare, o.Among = compare || err != nil, nil
		if err != nil {
			o.Among = strings.Split(value, ",")
		}
		return nil
	})
	f.Func("until", fmt.Sprintf("continue -compare after num_epochs until each allocator's time, as a ratio to the first's, is known to within `PERCENT`, as in 1%%; it ends after %d epochs, or after the number that follows a comma, as in 1%%,200", compare.UntilEpochs), o.Until.Set)
	f.path("resume", "resume the run in the folder `RUN`, with its own config", func(path string) { o.resume = path })
	f.BoolVar(&o.best, "best", false, "with -resume or -predict: take the weights of the run's lowest validation loss, not its last ones")
	f.group("what to train")

	f.BoolVar(&o.Check, "check", false, "check the config, print every key of it as TOML, and end")
	f.BoolVar(&o.Data, "data", false, "print where the config's data set is, and end; without a config: MNIST's")
	f.path("export", "write initial weights, batch orders and run.json to `DIR` for tools/numerics.py, and end", func(path string) { o.Export = path })
	f.BoolVar(&o.JSON, "json", false, "print the results as one JSON document to standard output, and all other lines to standard error")
	f.path("csv", "write the results to `FILE` as CSV, a row for each allocator", func(path string) { o.CSV = path })
	f.path("predict", "classify `IMAGE`, and those after it, with the weights of the run whose folder replaces the config: a PNG, a JPEG, an IDX file of images, or test, the test set", func(path string) {
		o.Predict = append(o.Predict, path)
	})
	f.path("report", "write an HTML page to `FILE`: of this training, or of the runs whose folders replace the config", func(path string) { o.Report = path })
	f.group("instead of training, or in addition")

	f.BoolVar(&o.list, "list", false, "list allocators and strategies, and which of them this machine can use")
	f.BoolVar(&o.version, "version", false, "print the version, and what it was built with")
	completion.Define(f.FlagSet, &o.completion)
	f.group("about the program")
	return f.FlagSet, f.groups
}

// unknownFlag reports a flag that does not exist, and the one that may be meant. It returns other
// errors as they are.
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
