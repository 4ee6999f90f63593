// Package configs reads the TOML files that say what to train, and how. Beside
// this file lie the recipes that come with the program.
//
// Every key has a default, so an empty file is a valid one. A key that is not
// known, a value of a wrong type and one out of range are errors.
package configs

import (
	"cmp"
	"fmt"
	"io"
	"os"

	"mlpool/allocator"
)

// A Config is a whole file. The fields of a section are its keys, written
// there in lower case with underscores: Model.FeatDim is feat_dim in [model].
type Config struct {
	Model     Model
	Train     Train
	Allocator Allocator
	Data      Data
	Log       Log

	name   string            // of the file, for errors
	places map[string]string // where each key that is not as by default is set: "mnist.toml:3: train.bsz"
}

// Model is section [model]: an MLP without biases.
type Model struct {
	FeatDim   int // width of the hidden layers, 1 to 32768
	NumLayers int // hidden layers, each with ReLU, 1 to 1000; the classifier of 10 classes comes on top
}

// Train is section [train]: plain SGD on shuffled batches.
type Train struct {
	NumEpochs    int     // passes over the training set, 1 to 1000000
	Bsz          int     // rows of a batch, 1 to 1048576; the last batch of an epoch has the rest
	LearningRate float32 // positive
	Seed         uint64  // of the initial weights and the shuffles, 0 to 2^63-1
	Device       string  // "cuda", "cpu" or "auto": a GPU where there is one, else the CPU
	// Precision is that of GEMMs on a GPU: "fp32"; "tf32"; "3xtf32", as exact as fp32 on
	// tensor cores; or "auto": 3xtf32 where there are any, else fp32.
	Precision string
	Executor  string // "eager": operations are launched one by one; "graph": from CUDA graphs of many steps
	Fuse      bool   // false: one kernel and one output for each operation, as without fusion
	Verbose   bool   // print the loss every so many steps, for which each time the device is waited for
	TimeEpoch bool   // print a line of times after each epoch
	Profile   int    // after the training, time so many more steps operation by operation, 0 to 1000000; "eager" only
	Nvtx      bool   // show epochs, steps and operations to a profiler as NVTX ranges

	// CheckpointEvery is how many epochs lie between two checkpoints, 0 to 1000000; 0: there
	// is one at the end.
	CheckpointEvery int
}

// Allocator is section [allocator]. The environment chooses the kind of
// allocator; this is how it works. Sizes are in bytes.
type Allocator struct {
	// Of the pool of this program, and of what a plan falls back to.
	Strategy string // how a free block is chosen
	Reuse    string // how far free memory moves between streams: "wait", "opportunistic" or "same-stream"
	// Segments is where memory comes from: "virtual", pages that are mapped where they are
	// needed; "malloc", cudaMalloc; or "": virtual where the device and the strategy can have
	// it, else malloc.
	Segments        string
	SegmentBytes    int     // of malloc segments: the unit of what is asked of the driver, a power of two from 256 on; 0: the pool's choice
	MaxSegmentBytes int     // of malloc segments: the size at which they stop growing; 0: the pool's choice
	MaxSplitBytes   int     // of malloc segments: larger blocks are kept for large requests; 0: none are
	GcThreshold     float64 // share of the limit from which on unused segments go back early, 0 to 1; 0: never
	Slack           float64 // of virtual segments: share of the most handed out that may be reserved beyond it before memory is moved, 0 to 1; 0: the pool's choice
	Preallocate     int     // bytes reserved at the start

	// Of the driver's pool.
	ReleaseThreshold    int  // bytes it keeps when the host waits for the device; -1: all
	ReuseDependencies   bool // reuse between streams where an event orders them
	ReuseOpportunistic  bool // reuse between streams where the work is found to be done
	ReuseInternalEvents bool // make the driver order streams for a reuse

	// Of any.
	MaxBytes    int     // limit of what a pool of this program reserves, and others hand out; 0: none
	MaxFraction float64 // the same as a share of the device's memory, 0 to 1; 0: none
	Trace       string  // file for a trace of the last calls, NAME.csv, NAME.json or NAME.pickle; empty: none
	TraceEvents int     // how many calls the trace keeps, the last ones
	Poison      bool    // fill blocks with NaN, and check what lies around them
}

// Data is section [data].
type Data struct {
	Dataset string // "mnist" or "fashion"
	DataDir string // folder with the four IDX files; empty: found or fetched
}

// Log is section [log].
type Log struct {
	// LogDir is the folder for losses, accuracies and metrics, or for a folder of them for
	// each allocator; empty: none are written.
	LogDir string
}

// Default returns what a file that sets nothing means.
func Default() Config {
	return Config{
		Model: Model{FeatDim: 784, NumLayers: 4},
		Train: Train{
			NumEpochs: 10, Bsz: 64, LearningRate: 0.1, Seed: 0,
			Device: "auto", Precision: "auto", Executor: "eager", Fuse: true, Verbose: false, TimeEpoch: true,
		},
		Allocator: Allocator{
			Strategy: "tlsf", Reuse: "wait", ReleaseThreshold: -1,
			ReuseDependencies: true, ReuseOpportunistic: true, ReuseInternalEvents: true,
			TraceEvents: 1 << 20,
		},
		Data: Data{Dataset: "mnist", DataDir: ""},
		Log:  Log{LogDir: "logs"},
	}
}

// keys are all that a file may set. A new key is a field, its default and a
// line here; a section exists once a key is in it.
var keys = []key{
	{"model.feat_dim", integer(1, 32768, func(c *Config) *int { return &c.Model.FeatDim })},
	{"model.num_layers", integer(1, 1000, func(c *Config) *int { return &c.Model.NumLayers })},
	{"train.num_epochs", integer(1, 1e6, func(c *Config) *int { return &c.Train.NumEpochs })},
	{"train.bsz", integer(1, 1<<20, func(c *Config) *int { return &c.Train.Bsz })},
	{"train.learning_rate", positive(func(c *Config) *float32 { return &c.Train.LearningRate })},
	{"train.seed", integer(0, 1<<63-1, func(c *Config) *uint64 { return &c.Train.Seed })},
	{"train.device", oneOf(func(c *Config) *string { return &c.Train.Device }, "auto", "cuda", "cpu")},
	{"train.precision", oneOf(func(c *Config) *string { return &c.Train.Precision }, "auto", "fp32", "tf32", "3xtf32")},
	{"train.executor", oneOf(func(c *Config) *string { return &c.Train.Executor }, "eager", "graph")},
	{"train.fuse", boolean(func(c *Config) *bool { return &c.Train.Fuse })},
	{"train.verbose", boolean(func(c *Config) *bool { return &c.Train.Verbose })},
	{"train.time_epoch", boolean(func(c *Config) *bool { return &c.Train.TimeEpoch })},
	{"train.profile", integer(0, 1e6, func(c *Config) *int { return &c.Train.Profile })},
	{"train.nvtx", boolean(func(c *Config) *bool { return &c.Train.Nvtx })},
	{"train.checkpoint_every", integer(0, 1e6, func(c *Config) *int { return &c.Train.CheckpointEvery })},
	{"allocator.strategy", oneOf(func(c *Config) *string { return &c.Allocator.Strategy }, allocator.Strategies()...)},
	{"allocator.reuse", oneOf(func(c *Config) *string { return &c.Allocator.Reuse }, "wait", "opportunistic", "same-stream")},
	{"allocator.segments", oneOf(func(c *Config) *string { return &c.Allocator.Segments }, "virtual", "malloc", "")},
	{"allocator.segment_bytes", powerOfTwo(256, func(c *Config) *int { return &c.Allocator.SegmentBytes })},
	{"allocator.max_segment_bytes", bytes(0, func(c *Config) *int { return &c.Allocator.MaxSegmentBytes })},
	{"allocator.max_bytes", bytes(0, func(c *Config) *int { return &c.Allocator.MaxBytes })},
	{"allocator.max_fraction", share(func(c *Config) *float64 { return &c.Allocator.MaxFraction })},
	{"allocator.max_split_bytes", bytes(0, func(c *Config) *int { return &c.Allocator.MaxSplitBytes })},
	{"allocator.gc_threshold", share(func(c *Config) *float64 { return &c.Allocator.GcThreshold })},
	{"allocator.slack", share(func(c *Config) *float64 { return &c.Allocator.Slack })},
	{"allocator.preallocate", bytes(0, func(c *Config) *int { return &c.Allocator.Preallocate })},
	{"allocator.release_threshold", bytes(-1, func(c *Config) *int { return &c.Allocator.ReleaseThreshold })},
	{"allocator.reuse_dependencies", boolean(func(c *Config) *bool { return &c.Allocator.ReuseDependencies })},
	{"allocator.reuse_opportunistic", boolean(func(c *Config) *bool { return &c.Allocator.ReuseOpportunistic })},
	{"allocator.reuse_internal_events", boolean(func(c *Config) *bool { return &c.Allocator.ReuseInternalEvents })},
	{"allocator.trace", traceFile(func(c *Config) *string { return &c.Allocator.Trace })},
	{"allocator.trace_events", integer(1, 1<<30, func(c *Config) *int { return &c.Allocator.TraceEvents })},
	{"allocator.poison", boolean(func(c *Config) *bool { return &c.Allocator.Poison })},
	{"data.dataset", oneOf(func(c *Config) *string { return &c.Data.Dataset }, "mnist", "fashion")},
	{"data.data_dir", text(func(c *Config) *string { return &c.Data.DataDir })},
	{"log.log_dir", text(func(c *Config) *string { return &c.Log.LogDir })},
}

// Keys returns the names of all keys with their sections, such as "train.bsz", in the
// order of the sections.
func Keys() []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// Values returns all values that a key may have, such as eager and graph, or nil if they cannot
// be listed.
func Values(name string) []string {
	for _, k := range keys {
		if k.name == name {
			return k.values
		}
	}
	return nil
}

// maxFile is the longest text that is read, in bytes.
const maxFile = 1 << 20

// Load reads the file at path, or standard input where that is "-", and then takes
// the settings, as [Parse] does. Its errors are one line: that of os for a file that
// cannot be read, those of Parse for the rest.
func Load(path string, settings ...string) (Config, error) {
	name, file := "standard input", os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return Config{}, err
		}
		defer f.Close()
		name, file = path, f
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return Config{}, err
	}
	if len(text) > maxFile {
		return Config{}, fmt.Errorf("%s: larger than 1 MiB, which no config is", name)
	}
	return Parse(name, text, settings...)
}

// Name returns what the config was read from: a path, or "standard input".
func (c Config) Name() string { return c.name }

// defaultSegment is allocator.segment_bytes where that is 0.
const defaultSegment = 2 << 20

// check looks for values that do not go together.
func (c Config) check() (errs Errors) {
	a := c.Allocator
	fail := func(key, format string, args ...any) { errs = append(errs, c.Errorf(key, format, args...)) }
	graph := c.Train.Executor == "graph"
	if graph && c.Train.Profile > 0 {
		fail("train.profile", `times operations one by one, which executor "graph" does not launch`)
	}
	if graph && a.Poison {
		fail("allocator.poison", `needs executor = "eager": a graph's blocks are not handed out anew`)
	}
	if least := cmp.Or(a.SegmentBytes, defaultSegment); a.MaxSegmentBytes != 0 && a.MaxSegmentBytes < least {
		fail("allocator.max_segment_bytes", "is %d, less than the %d of allocator.segment_bytes", a.MaxSegmentBytes, least)
	}
	if a.MaxBytes != 0 && a.Preallocate > a.MaxBytes {
		fail("allocator.preallocate", "is %d, more than the %d of allocator.max_bytes", a.Preallocate, a.MaxBytes)
	}
	return errs
}

// CheckData returns an error if a training set of so many rows does not fill
// one batch, which so many ranks have together.
func (c Config) CheckData(trainRows, ranks int) error {
	if ranks > 1 && c.Train.Bsz > trainRows/ranks {
		return c.Errorf("train.bsz", "%d on each of %d ranks is more than the %d rows of the training set", c.Train.Bsz, ranks, trainRows)
	}
	if c.Train.Bsz > trainRows {
		return c.Errorf("train.bsz", "%d is more than the %d rows of the training set", c.Train.Bsz, trainRows)
	}
	return nil
}

// Errorf returns an error about the value of a key, such as "train.device". It
// starts with where the key was set, the file's line or the setting, and else with the
// file's name.
func (c Config) Errorf(key, format string, args ...any) error {
	place, set := c.places[key]
	if !set {
		place = fmt.Sprintf("%s: %s (not set there)", c.name, key)
	}
	return fmt.Errorf("%s: %w", place, fmt.Errorf(format, args...))
}
