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
	PlannedPool = "plan"   // allocator.Plan
	CUDAAsync   = "cuda"   // allocator.Async: cudaMallocAsync, cudaFreeAsync
	PlainMalloc = "malloc" // allocator.Malloc: cudaMalloc, cudaFree
)

var AllKinds = []string{CustomPool, PlannedPool, CUDAAsync, PlainMalloc}

// AboutKinds describes each kind in a line.
var AboutKinds = map[string]string{
	CustomPool:  "this program's pool (the default)",
	PlannedPool: "the same, with each step's blocks planned once and replayed by index",
	CUDAAsync:   "the driver's pool: cudaMallocAsync and cudaFreeAsync",
	PlainMalloc: "no pool: cudaMalloc and cudaFree, to show the problem",
}

// A Subject is an allocator under test. Its name is its kind, as in "cuda", or with a strategy, as
// in "custom:bestfit".
type Subject struct {
	Kind     string
	Strategy string // of its pool; empty: that of the config
}

// ParseSubject returns the subject of a name.
func ParseSubject(name string) (Subject, error) {
	kind, strategy, hasStrategy := strings.Cut(name, ":")
	c := Subject{kind, strategy}
	switch {
	case !slices.Contains(AllKinds, kind):
		return c, fmt.Errorf("%q is not an allocator: use one of %s", kind, choices(kind, AllKinds))
	case hasStrategy && !c.HasPool():
		return c, fmt.Errorf("%s has no strategies: use %s, or %s:%s", kind, kind, CustomPool, strategy)
	case hasStrategy && !slices.Contains(allocator.Strategies(), strategy):
		return c, fmt.Errorf("%q is not a strategy: use one of %s", strategy, choices(strategy, allocator.Strategies()))
	}
	return c, nil
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
	if c.Strategy == "" {
		return c.Kind
	}
	return c.Kind + ":" + c.Strategy
}

// File returns the name for use in file names: custom-bestfit.
func (c Subject) File() string { return strings.ReplaceAll(c.String(), ":", "-") }

// HasPool reports whether the allocator has a pool of this program.
func (c Subject) HasPool() bool { return c.Kind == CustomPool || c.Kind == PlannedPool }

// Of returns cfg with the subject's strategy.
func (c Subject) Of(cfg configs.Config) configs.Config {
	if c.Strategy != "" {
		cfg.Allocator.Strategy = c.Strategy
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
// ALLOCATOR_TYPE names.
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
		i := slices.IndexFunc(list, func(have Subject) bool { return sameAllocator(have, c, cfg) })
		if i >= 0 {
			return nil, ListError{fmt.Errorf("-compare=%s: %s and %s are the same allocator: name it once", strings.Join(among, ","), list[i], c)}
		}
		list = append(list, c)
	}
	return first(list, reference, names != nil, env, cfg)
}

// ListError is the error of a list of allocators that no config would allow.
type ListError struct{ error }

// first moves reference to the front of list. given says that the user gave the list; env is the
// value of ALLOCATOR_TYPE, which such a list must contain.
func first(list []Subject, reference Subject, given bool, env string, cfg configs.Config) ([]Subject, error) {
	i := slices.IndexFunc(list, func(c Subject) bool { return sameAllocator(c, reference, cfg) })
	switch {
	case i >= 0 && (env != "" || !given):
		list = slices.Insert(slices.Delete(list, i, i+1), 0, reference)
	case given && env != "":
		return nil, fmt.Errorf("%s=%s names the reference, but -compare does not list it: add it there or unset %s", AllocatorEnv, env, AllocatorEnv)
	case !given:
		list = slices.Insert(list, 0, reference)
	}
	if len(list) < 2 {
		return nil, ListError{fmt.Errorf("-compare=%s is one allocator: name two or more, as in -compare=custom,cuda", list[0])}
	}
	return list, nil
}

// sameAllocator reports whether two subjects are the same under cfg.
func sameAllocator(a, b Subject, cfg configs.Config) bool {
	return a.Kind == b.Kind && (!a.HasPool() || a.Of(cfg).Allocator.Strategy == b.Of(cfg).Allocator.Strategy)
}
