package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/internal/program"
	"mlpool/kernels"
)

// Document reports whether standard output is for a program: JSON, TOML, or a script.
func (o Options) Document() bool { return o.JSON || o.Check || o.completion != "" }

// InfoCommand returns what the options ask for if that needs no config, or nil.
func (o Options) InfoCommand() func(stdout io.Writer) error {
	switch {
	case o.list:
		return func(w io.Writer) error { return printList(w, kernels.Available()) }
	case o.version:
		return func(w io.Writer) error {
			_, err := fmt.Fprintln(w, program.Facts())
			return err
		}
	case o.completion != "":
		return func(w io.Writer) error {
			_, err := io.WriteString(w, script(o.completion))
			return err
		}
	}
	return nil
}

// printList lists the allocators and strategies. noGPU says why there is no GPU; nil: there is one.
func printList(stdout io.Writer, noGPU error) error {
	const column = 19
	var w strings.Builder
	b := &backend.Backend{GPU: noGPU == nil}
	fmt.Fprint(&w, "allocators, for ALLOCATOR_TYPE and -compare:\n")
	for _, kind := range backend.AllKinds {
		about := backend.AboutKinds[kind]
		if !slices.Contains(b.Kinds(), kind) {
			about += fmt.Sprintf("; not here: %v", noGPU)
		}
		terminal.PrintEntry(&w, column, kind, about)
	}
	if noGPU != nil {
		fmt.Fprint(&w, "custom and malloc hand out host memory here.\n")
	}
	fmt.Fprint(&w, "\nstrategies of custom, for allocator.strategy and as in\n-compare=custom:bestfit, all here:\n")
	for i, name := range allocator.Strategies() {
		about := allocator.DescribeStrategy(name)
		if i == 0 {
			about += " (the default)"
		}
		terminal.PrintEntry(&w, column, name, about)
	}
	_, err := io.WriteString(stdout, w.String())
	return err
}
