// Package configs reads the TOML files that say what to train, and how. Its folder also
// has the configs that come with the program, and README.md, the reference of all keys.
//
// Every key has a default, so an empty file is valid. An unknown key, a value of a wrong
// type and a value out of range are errors.
package configs

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"mlpool/allocator"
)

// A Config is a whole file. The fields of a section are its keys, which the file spells
// in lower case with underscores: Model.FeatDim is feat_dim in [model]. README.md has the
// range of each.
type Config struct {
	Model     Model
	Train     Train
	Allocator Allocator
	Data      Data
	Log       Log

	name   string            // of the file, for errors
	places map[string]string // where each key was set: "mnist.toml:3: train.bsz"
}

// Model is section [model]: an MLP without biases.
type Model struct {
	FeatDim   int // width of the hidden layers
	NumLayers int // hidden layers, each with a ReLU; the classifier comes on top
}

// Train is section [train]: plain SGD on shuffled batches.
type Train struct {
	NumEpochs       int     // passes over the training set
	Bsz             int     // rows of a batch; the last batch of an epoch has the rest
	LearningRate    float32 // positive
	Seed            uint64  // of the initial weights and the shuffles
	Device          string  // "cuda", "cpu" or "auto": a GPU if there is one, else the CPU
	Precision       string  // of GEMMs on a GPU: "fp32", "tf32", "3xtf32", or "auto": 3xtf32 where it is faster than fp32; "bf16" is mixed precision
	Executor        string  // "eager": operations are launched one by one; "graph": from CUDA graphs of many steps
	Fuse            bool    // false: one kernel and one output for each operation
	Verbose         bool    // print the loss now and then, each time waiting for the device
	TimeEpoch       bool    // print a line of times after each epoch
	Profile         int     // after the training, time this number of steps operation by operation; "eager" only
	Nvtx            bool    // show epochs, steps and operations to a profiler as NVTX ranges
	CheckpointEvery int     // epochs between checkpoints; 0: one at the end
}

// Allocator is section [allocator]. The environment chooses the allocator; this configures
// it. Sizes are in bytes.
type Allocator struct {
	// These keys are for a pool.
	Strategy        string  // how a free block is chosen
	Reuse           string  // how free memory moves between streams: "wait", "opportunistic" or "same-stream"
	Segments        string  // "virtual", "malloc", or "": virtual if the device and the strategy can, else malloc
	SegmentBytes    int     // of malloc segments: the unit of their sizes; 0: the pool's choice
	MaxSegmentBytes int     // of malloc segments: the largest; 0: the pool's choice
	GcThreshold     float64 // share of the limit from which on unused segments go back early; 0: never
	BusySlack       float64 // of virtual segments: share of the peak that may be reserved beyond it before a stream waits for another's memory; 0: none
	Slack           float64 // of virtual segments: share of the peak that may be reserved beyond it before memory moves; 0: the pool's choice
	Preallocate     int     // bytes reserved at the start

	// These are for the driver's pool.
	ReleaseThreshold    int  // bytes it keeps when the host waits for the device; -1: all
	ReuseDependencies   bool // reuse between streams that an event orders
	ReuseOpportunistic  bool // reuse between streams once the work is found done
	ReuseInternalEvents bool // make the driver order streams for a reuse

	// These are for any allocator.
	MaxBytes    int     // limit on what the pool reserves, and others hand out; 0: none
	MaxFraction float64 // the same as a share of the device's memory; 0: none
	Trace       string  // file for a trace of the last calls, NAME.csv, NAME.json or NAME.pickle; empty: none
	TraceEvents int     // calls that the trace keeps
	Poison      bool    // fill blocks with NaN, and check the bytes around them
}

// Data is section [data].
type Data struct {
	Dataset string // "mnist" or "fashion"
	DataDir string // folder with the four IDX files; empty: found or fetched
}

// Log is section [log].
type Log struct {
	LogDir string // for the folders of runs; empty: nothing is written
}

// Default returns the config of an empty file.
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

// keys are the keys that a file may set. A new key is a field, its default and a line here
// and in README.md; a section exists once it has a key.
var keys = []key{
	{"model.feat_dim", integer(1, 32768, func(c *Config) *int { return &c.Model.FeatDim })},
	{"model.num_layers", integer(1, 1000, func(c *Config) *int { return &c.Model.NumLayers })},
	{"train.num_epochs", integer(1, 1e6, func(c *Config) *int { return &c.Train.NumEpochs })},
	{"train.bsz", integer(1, 1<<20, func(c *Config) *int { return &c.Train.Bsz })},
	{"train.learning_rate", positive(func(c *Config) *float32 { return &c.Train.LearningRate })},
	{"train.seed", integer(0, 1<<63-1, func(c *Config) *uint64 { return &c.Train.Seed })},
	{"train.device", oneOf(func(c *Config) *string { return &c.Train.Device }, "auto", "cuda", "cpu")},
	{"train.precision", oneOf(func(c *Config) *string { return &c.Train.Precision }, "auto", "fp32", "tf32", "3xtf32", "bf16")},
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
	{"allocator.max_segment_bytes", integer(0, maxBytes, func(c *Config) *int { return &c.Allocator.MaxSegmentBytes })},
	{"allocator.max_bytes", integer(0, maxBytes, func(c *Config) *int { return &c.Allocator.MaxBytes })},
	{"allocator.max_fraction", upTo(1, func(c *Config) *float64 { return &c.Allocator.MaxFraction })},
	{"allocator.gc_threshold", upTo(1, func(c *Config) *float64 { return &c.Allocator.GcThreshold })},
	{"allocator.busy_slack", upTo(16, func(c *Config) *float64 { return &c.Allocator.BusySlack })},
	{"allocator.slack", upTo(1, func(c *Config) *float64 { return &c.Allocator.Slack })},
	{"allocator.preallocate", integer(0, maxBytes, func(c *Config) *int { return &c.Allocator.Preallocate })},
	{"allocator.release_threshold", integer(-1, maxBytes, func(c *Config) *int { return &c.Allocator.ReleaseThreshold })},
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

// Keys returns the names of all keys, such as "train.bsz", section by section.
func Keys() []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// KeysOf returns the names of the keys of a section, such as "allocator.slack"; none: there is no such
// section.
func KeysOf(section string) []string {
	return slices.DeleteFunc(Keys(), func(name string) bool { return !strings.HasPrefix(name, section+".") })
}

// Value returns the value that c has for a key, or nil if there is no such key.
func (c Config) Value(name string) any {
	if i := index(name); i >= 0 {
		return keys[i].get(&c)
	}
	return nil
}

// Values returns all values of a key, such as eager and graph, or nil if they cannot be listed.
func Values(name string) []string {
	if i := index(name); i >= 0 {
		return keys[i].values
	}
	return nil
}

// Want returns what the values of a key are, such as "an integer from 1 to 32768", or "" if there is no such key.
func Want(name string) string {
	if i := index(name); i >= 0 {
		return keys[i].want
	}
	return ""
}

// index returns the place of a key in keys, or -1.
func index(name string) int {
	return slices.IndexFunc(keys, func(k key) bool { return k.name == name })
}

// maxFile is the size of the largest file that Load reads.
const maxFile = 1 << 20

// Load reads the file at path, or standard input if path is "-", and parses it with the
// settings, as [Parse] does. Each of its errors is one line.
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
		return Config{}, fmt.Errorf("%s: larger than 1 MiB", name)
	}
	return Parse(name, text, settings...)
}

// Name returns where the config was read from: a path, or "standard input".
func (c Config) Name() string { return c.name }

// defaultSegment is the size of allocator.segment_bytes = 0.
const defaultSegment = 2 << 20

// check reports values that exclude each other.
func (c Config) check() (errs Errors) {
	a := c.Allocator
	fail := func(key, format string, args ...any) { errs = append(errs, c.Errorf(key, format, args...)) }
	graph := c.Train.Executor == "graph"
	if graph && c.Train.Profile > 0 {
		fail("train.profile", `needs executor = "eager": a graph's operations are not launched one by one`)
	}
	if graph && a.Poison {
		fail("allocator.poison", `needs executor = "eager": a graph's blocks are handed out only once`)
	}
	if least := cmp.Or(a.SegmentBytes, defaultSegment); a.MaxSegmentBytes != 0 && a.MaxSegmentBytes < least {
		fail("allocator.max_segment_bytes", "is %d, less than the %d of allocator.segment_bytes", a.MaxSegmentBytes, least)
	}
	if a.MaxBytes != 0 && a.Preallocate > a.MaxBytes {
		fail("allocator.preallocate", "is %d, more than the %d of allocator.max_bytes", a.Preallocate, a.MaxBytes)
	}
	return errs
}

// PoolOptions returns the options of a pool. The error is one of key reuse;
// [allocator.NewPool] checks the others.
func (a Allocator) PoolOptions() (allocator.PoolOptions, error) {
	reuse, err := allocator.ParseReuse(a.Reuse)
	return allocator.PoolOptions{
		Strategy: a.Strategy, Reuse: reuse, Segments: a.Segments,
		SegmentBytes: int64(a.SegmentBytes), MaxSegmentBytes: int64(a.MaxSegmentBytes),
		MaxBytes: int64(a.MaxBytes), MaxFraction: a.MaxFraction,
		GCThreshold: a.GcThreshold, Slack: a.Slack, BusySlack: a.BusySlack, PreallocateBytes: int64(a.Preallocate),
	}, err
}

// CheckData returns an error if a training set of trainRows rows has less than one batch
// for each of the ranks.
func (c Config) CheckData(trainRows, ranks int) error {
	if ranks > 1 && c.Train.Bsz > trainRows/ranks {
		return c.Errorf("train.bsz", "%d on each of %d ranks is more than the %d rows of the training set", c.Train.Bsz, ranks, trainRows)
	}
	if c.Train.Bsz > trainRows {
		return c.Errorf("train.bsz", "%d is more than the %d rows of the training set", c.Train.Bsz, trainRows)
	}
	return nil
}

// Errorf returns an error about the value of a key, such as "train.device". It starts with
// the line or the setting that set the key or, for a default, with the file's name.
func (c Config) Errorf(key, format string, args ...any) error {
	place, set := c.places[key]
	if !set {
		place = fmt.Sprintf("%s: %s (not set there)", c.name, key)
	}
	return fmt.Errorf("%s: %w", place, fmt.Errorf(format, args...))
}
