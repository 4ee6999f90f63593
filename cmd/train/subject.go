package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/configs"
)

// allocatorEnv is the environment variable that names an allocator.
const allocatorEnv = "ALLOCATOR_TYPE"

// The kinds of allocator.
const (
	customPool  = "custom" // allocator.Pool
	plannedPool = "plan"   // allocator.Plan
	cudaAsync   = "cuda"   // allocator.Async: cudaMallocAsync, cudaFreeAsync
	plainMalloc = "malloc" // allocator.Malloc: cudaMalloc, cudaFree
)

var allKinds = []string{customPool, plannedPool, cudaAsync, plainMalloc}

// aboutKinds has a line on each kind of allocator.
var aboutKinds = map[string]string{
	customPool:  "a pool of this program's own (the default)",
	plannedPool: "the same, with each step's blocks planned once and replayed by index",
	cudaAsync:   "the driver's pool: cudaMallocAsync and cudaFreeAsync",
	plainMalloc: "no pool: cudaMalloc and cudaFree, to show the problem",
}

// A Subject is an allocator under test: its kind and strategy, as in: "cuda", "custom:bestfit".
type subject struct {
	kind     string
	strategy string // of its pool; empty: that of the config
}

// parseSubject returns the allocator of a name.
func parseSubject(name string) (subject, error) {
	kind, strategy, hasStrategy := strings.Cut(name, ":")
	c := subject{kind, strategy}
	switch {
	case !slices.Contains(allKinds, kind):
		return c, fmt.Errorf("%q is no allocator: use one of %s", kind, choices(kind, allKinds))
	case hasStrategy && !c.hasPool():
		return c, fmt.Errorf("%s has no strategies: use %s, or %s:%s", kind, kind, customPool, strategy)
	case hasStrategy && !slices.Contains(allocator.Strategies(), strategy):
		return c, fmt.Errorf("%q is no strategy: use one of %s", strategy, choices(strategy, allocator.Strategies()))
	}
	return c, nil
}

// choices lists names, with the one that a wrong word may mean.
func choices(word string, names []string) string {
	list := strings.Join(names, ", ")
	if i := configs.Nearest(word, names); i >= 0 {
		list += ": did you mean " + names[i] + "?"
	}
	return list
}

func (c subject) String() string {
	if c.strategy == "" {
		return c.kind
	}
	return c.kind + ":" + c.strategy
}

// file is the subject's name as part of that of a file: custom-bestfit.
func (c subject) file() string { return strings.ReplaceAll(c.String(), ":", "-") }

// hasPool says whether the allocator has a pool of this program.
func (c subject) hasPool() bool { return c.kind == customPool || c.kind == plannedPool }

// of is a config with the subject's strategy.
func (c subject) of(cfg configs.Config) configs.Config {
	if c.strategy != "" {
		cfg.Allocator.Strategy = c.strategy
	}
	return cfg
}

// check returns an error if the subject cannot be had on the device, with the
// executor.
func (c subject) check(b *backend) error {
	kinds := strings.Join(b.kinds(), ", ")
	switch {
	case b.graph && c.kind == plainMalloc:
		return fmt.Errorf("%s is plain cudaMalloc, which no graph can capture: use one of %s, or train.executor = \"eager\"", c, kinds)
	case !b.gpu && c.kind == cudaAsync:
		return fmt.Errorf("%s is cudaMallocAsync and needs a GPU, and this run is on the CPU: use one of %s", c, kinds)
	}
	return nil
}

// subjects returns the allocators to train on: the one that ALLOCATOR_TYPE names, or
// several to compare. Those are the ones that are listed, or else all that can be had.
// The first is what the others' differences are from: the one that ALLOCATOR_TYPE names.
func (b *backend) subjects(cfg configs.Config, compare bool, names []string) (list []subject, err error) {
	parse := func(from, name string) (subject, error) {
		c, err := parseSubject(name)
		if err == nil {
			err = c.check(b)
		}
		if err != nil {
			err = fmt.Errorf("%s%s: %w", from, name, err)
		}
		return c, err
	}
	reference := subject{kind: customPool}
	env := os.Getenv(allocatorEnv)
	if env != "" {
		if reference, err = parse(allocatorEnv+"=", env); err != nil {
			return nil, err
		}
	}
	if !compare {
		return []subject{reference}, nil
	}
	among := names
	if among == nil {
		among = b.kinds()
	}
	for _, name := range among {
		c, err := parse("-compare=", name)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(have subject) bool { return sameAllocator(have, c, cfg) })
		if i >= 0 {
			return nil, listError{fmt.Errorf("-compare=%s: %s and %s are the same allocator: name it once", strings.Join(among, ","), list[i], c)}
		}
		list = append(list, c)
	}
	return first(list, reference, names != nil, env, cfg)
}

// listError is the error of a list on the command line that no other config would allow either.
type listError struct{ error }

// first puts the reference first in a list. It is an error if ALLOCATOR_TYPE, env, names
// one that is not in a list that the user gave.
func first(list []subject, reference subject, given bool, env string, cfg configs.Config) ([]subject, error) {
	i := slices.IndexFunc(list, func(c subject) bool { return sameAllocator(c, reference, cfg) })
	switch {
	case i >= 0 && (env != "" || !given):
		list = slices.Insert(slices.Delete(list, i, i+1), 0, reference)
	case given && env != "":
		return nil, fmt.Errorf("%s=%s names what to compare with, and -compare does not list it: add it there or unset %s", allocatorEnv, env, allocatorEnv)
	case !given:
		list = slices.Insert(list, 0, reference)
	}
	if len(list) < 2 {
		return nil, listError{fmt.Errorf("-compare=%s is one allocator: name two or more, as in -compare=custom,cuda", list[0])}
	}
	return list, nil
}

// sameAllocator says whether two names mean the same under a config.
func sameAllocator(a, b subject, cfg configs.Config) bool {
	return a.kind == b.kind && (!a.hasPool() || a.of(cfg).Allocator.Strategy == b.of(cfg).Allocator.Strategy)
}
