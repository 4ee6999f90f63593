package backend

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/configs"
)

// AllocatorEnv is the environment variable that chooses the allocator.
const AllocatorEnv = "ALLOCATOR_TYPE"

// The kinds of allocators.
const (
	CustomPool  = "custom" // allocator.Pool
	CUDAAsync   = "cuda"   // allocator.Async: cudaMallocAsync, cudaFreeAsync
	PlainMalloc = "malloc" // allocator.Malloc: cudaMalloc, cudaFree
)

var AllKinds = []string{CustomPool, CUDAAsync, PlainMalloc}

// AboutKinds describes each kind in a line.
var AboutKinds = map[string]string{
	CustomPool:  "this program's pool (the default)",
	CUDAAsync:   "the driver's pool: cudaMallocAsync and cudaFreeAsync",
	PlainMalloc: "no pool: cudaMalloc and cudaFree, to show the problem",
}

// A Subject is an allocator under test. Its name is its kind, as in "cuda", or that of a pool with options, as
// in "custom:bestfit" and "custom:slab:slack=1/64". The second of one name in a comparison is "custom#2".
type Subject struct {
	Kind    string
	Options string // of its pool, in place of those in the config: strategies, and settings of optionKeys
	Copy    int    // 2 is the second of its name; 0: the first
}

// optionKeys are the keys of section [allocator] that the name of a subject may set.
var optionKeys = []string{"reuse", "segments", "gc_threshold", "slack", "busy_slack"}

// ParseSubject returns the subject of a name.
func ParseSubject(name string) (Subject, error) {
	kind, options, hasOptions := strings.Cut(name, ":")
	c := Subject{Kind: kind, Options: options}
	switch {
	case !slices.Contains(AllKinds, kind):
		return c, fmt.Errorf("%q is not an allocator: use one of %s", kind, choices(kind, AllKinds))
	case hasOptions && !c.HasPool():
		return c, fmt.Errorf("%s has no options: use %s, or %s:%s", kind, kind, CustomPool, options)
	case !hasOptions:
		return c, nil
	}
	cfg := configs.Default()
	for option := range strings.SplitSeq(options, ":") {
		if err := setOption(&cfg, option); err != nil {
			return c, err
		}
	}
	return c, nil
}

// setOption sets an option of a pool, a strategy or KEY=VALUE.
func setOption(cfg *configs.Config, option string) error {
	key, value, isSetting := strings.Cut(option, "=")
	switch {
	case isSetting && !slices.Contains(optionKeys, key):
		return fmt.Errorf("%q cannot be set for one allocator: use one of %s", key, choices(key, optionKeys))
	case isSetting:
		return cfg.Set("allocator."+key, value)
	case !slices.Contains(allocator.Strategies(), option):
		return fmt.Errorf("%q is not a strategy: use one of %s", option, choices(option, allocator.Strategies()))
	}
	cfg.Allocator.Strategy = option
	return nil
}

// choices lists names, and guesses which one word means.
func choices(word string, names []string) string {
	list := strings.Join(names, ", ")
	if i := configs.Nearest(word, names); i >= 0 {
		list += ": did you mean " + names[i] + "?"
	}
	return list
}

func (c Subject) String() string {
	name := c.Kind
	if c.Options != "" {
		name += ":" + c.Options
	}
	if c.Copy > 0 {
		name += fmt.Sprint("#", c.Copy)
	}
	return name
}

// File returns the name for use in file names: custom-bestfit, custom-slack=1-64, custom#2.
func (c Subject) File() string { return strings.NewReplacer(":", "-", "/", "-").Replace(c.String()) }

// HasPool reports whether the allocator has a pool of this program.
func (c Subject) HasPool() bool { return c.Kind == CustomPool }

// Of returns cfg with the subject's options.
func (c Subject) Of(cfg configs.Config) configs.Config {
	if c.Options != "" {
		for option := range strings.SplitSeq(c.Options, ":") {
			_ = setOption(&cfg, option) // ParseSubject has checked it
		}
	}
	return cfg
}

// check returns an error if b does not have the subject.
func (c Subject) check(b *Backend) error {
	kinds := strings.Join(b.Kinds(), ", ")
	switch {
	case b.Graph && c.Kind == PlainMalloc:
		return fmt.Errorf("%s is plain cudaMalloc, which no graph can capture: use one of %s, or train.executor = \"eager\"", c, kinds)
	case !b.GPU && c.Kind == CUDAAsync:
		return fmt.Errorf("%s is cudaMallocAsync and needs a GPU, and this run is on the CPU: use one of %s", c, kinds)
	}
	return nil
}

// Subjects returns the allocators to train on: the one that ALLOCATOR_TYPE names or, to compare,
// those of names, or all that the device has. Differences are from the first, which is the one that
// ALLOCATOR_TYPE names. Names may be given twice, since what differs then is noise of the benchmark.
func (b *Backend) Subjects(cfg configs.Config, compare bool, names []string) (list []Subject, err error) {
	parse := func(from, name string) (Subject, error) {
		c, err := ParseSubject(name)
		if err == nil {
			err = c.check(b)
		}
		if err != nil {
			err = fmt.Errorf("%s%s: %w", from, name, err)
		}
		return c, err
	}
	reference := Subject{Kind: CustomPool}
	env := os.Getenv(AllocatorEnv)
	if env != "" {
		if reference, err = parse(AllocatorEnv+"=", env); err != nil {
			return nil, err
		}
	}
	if !compare {
		return []Subject{reference}, nil
	}
	among := names
	if among == nil {
		among = b.Kinds()
	}
	for _, name := range among {
		c, err := parse("-compare=", name)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if list, err = first(list, reference, names != nil, env, cfg); err != nil {
		return nil, err
	}
	times := map[Subject]int{}
	for i, c := range list {
		if times[c]++; times[c] > 1 {
			list[i].Copy = times[c]
		}
	}
	return list, nil
}

// Alike returns the first two subjects that are the same allocator under cfg, if there are any.
func Alike(list []Subject, cfg configs.Config) (a, b Subject, found bool) {
	for i, b := range list {
		for _, a := range list[:i] {
			if sameAllocator(a, b, cfg) {
				return a, b, true
			}
		}
	}
	return a, b, false
}

// ListError is the error of a list of allocators that no config would allow.
type ListError struct{ error }

// first moves reference to the front of list. given says that the user gave the list; env is the
// value of ALLOCATOR_TYPE, which such a list must contain.
func first(list []Subject, reference Subject, given bool, env string, cfg configs.Config) ([]Subject, error) {
	i := slices.Index(list, reference)
	if i < 0 {
		i = slices.IndexFunc(list, func(c Subject) bool { return sameAllocator(c, reference, cfg) })
	}
	switch {
	case i >= 0 && (env != "" || !given):
		list = slices.Insert(slices.Delete(list, i, i+1), 0, reference)
	case given && env != "":
		return nil, fmt.Errorf("%s=%s names the reference, but -compare does not list it: add it there or unset %s", AllocatorEnv, env, AllocatorEnv)
	case !given:
		list = slices.Insert(list, 0, reference)
	}
	if len(list) < 2 {
		return nil, ListError{fmt.Errorf("-compare=%s is one allocator: name two or more, as in -compare=custom,cuda, or it twice", list[0])}
	}
	return list, nil
}

// sameAllocator reports whether two subjects are the same under cfg.
func sameAllocator(a, b Subject, cfg configs.Config) bool {
	return a.Kind == b.Kind && (!a.HasPool() || a.Of(cfg).Allocator == b.Of(cfg).Allocator)
}
