package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mlpool/allocator"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels"
)

// aboutKinds has a line on each kind of allocator.
var aboutKinds = map[string]string{
	customPool:  "a pool of this program's own (the default)",
	plannedPool: "the same, with each step's blocks planned once and replayed by index",
	cudaAsync:   "the driver's pool: cudaMallocAsync and cudaFreeAsync",
	plainMalloc: "no pool: cudaMalloc and cudaFree, to show the problem",
}

// infoCommand returns what the options ask for that needs no config, or nil.
func (o options) infoCommand() func(stdout io.Writer) error {
	switch {
	case o.list:
		return func(w io.Writer) error { return printList(w, kernels.Available()) }
	case o.version:
		return func(w io.Writer) error {
			_, err := fmt.Fprintln(w, buildFacts())
			return err
		}
	case o.completion != "":
		return func(w io.Writer) error {
			_, err := io.WriteString(w, completion(o.completion))
			return err
		}
	}
	return nil
}

// printList lists what can be chosen where a GPU can be had, or not and why.
func printList(stdout io.Writer, noGPU error) error {
	const column = 19
	var w strings.Builder
	b := &backend{gpu: noGPU == nil}
	fmt.Fprint(&w, "allocators, for ALLOCATOR_TYPE and -compare:\n")
	for _, kind := range allKinds {
		about := aboutKinds[kind]
		if !slices.Contains(b.kinds(), kind) {
			about += fmt.Sprintf("; not here: %v", noGPU)
		}
		printEntry(&w, column, kind, about)
	}
	if noGPU != nil {
		fmt.Fprint(&w, "custom, plan and malloc hand out host memory here.\n")
	}
	fmt.Fprint(&w, "\nstrategies of custom and plan, for allocator.strategy and as in\n-compare=custom:bestfit, all here:\n")
	for i, name := range allocator.Strategies() {
		about := allocator.DescribeStrategy(name)
		if i == 0 {
			about += " (the default)"
		}
		printEntry(&w, column, name, about)
	}
	_, err := io.WriteString(stdout, w.String())
	return err
}

// printData says where the files of the config's data set are.
func printData(ctx context.Context, cfg configs.Config, stdout io.Writer) error {
	l, err := data.Locate(ctx, dataOptions(cfg))
	if err != nil {
		return dataError(cfg, err)
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if cfg.Data.DataDir != "" {
		fmt.Fprintf(w, "source: %s\n", l.Source)
	} else {
		fmt.Fprintf(w, "source: %s, of %s\n", l.Source, cfg.Data.Dataset)
	}
	for _, f := range l.Files {
		fmt.Fprintf(w, "%s\t%d bytes\n", f.Path, f.Bytes)
	}
	return w.Flush()
}
