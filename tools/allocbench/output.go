package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// write writes the rows to the files of the options, or compares them with these files.
// Incomplete rows are written, but neither compared nor put into a README.
func (o options) write(notes []string, chosen []scenario, rows []row, all bool) error {
	var errs []error
	if o.csv != "" && !o.check {
		errs = append(errs, writeFile(o.csv, func(w io.Writer) error { return writeCSV(w, notes, rows) }))
	}
	if all && o.check {
		errs = append(errs, o.compare(rows))
	} else if all && o.readme != "" {
		errs = append(errs, o.writeTable(rows))
	}
	if o.plots != "" {
		_, err := drawAll(o.plots, origin(notes, o.csv), chosen, rows)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeTable is -readme. It rounds the figures like the CSV, which -check reads.
func (o options) writeTable(rows []row) error {
	kept, err := asWritten(rows)
	if err != nil {
		return err
	}
	return writeTable(o.readme, kept, false)
}

// compare is -check.
func (o options) compare(rows []row) error {
	_, kept, err := readFigures(o.csv)
	if err != nil {
		return err
	}
	err = checkFigures(o.csv, kept, rows)
	if o.readme != "" {
		err = errors.Join(err, writeTable(o.readme, kept, true))
	}
	return err
}

// export writes the trace as RMM's CSV, and describes it.
func (o *options) export(stdout io.Writer) error {
	t, doc, err := readTrace(o.trace, o.traceDevice)
	if err != nil {
		return err
	}
	if err := writeFile(o.exportRMM, t.WriteRMM); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, doc)
	return err
}

// printCards is -cards.
func (o options) printCards(ctx context.Context, stdout io.Writer) error {
	among, err := choose("allocator", cmp.Or(o.allocators, explained), contenders(), func(c contender) string { return c.name })
	if err != nil {
		return err
	}
	paths := []string{o.trace}
	if o.traces != "" {
		if paths, err = tracesBelow(o.traces); err != nil {
			return err
		}
	}
	return printCards(ctx, stdout, paths, o.traceDevice, among)
}

// redraw is -draw. It prints the files that it wrote. A CSV may have scenarios and allocators of
// other programs, so -scenario and -allocator choose among those of the CSV.
func (o options) redraw(stdout io.Writer) error {
	notes, rows, err := readFigures(o.draw)
	if err != nil {
		return err
	}
	known := append(scenarios(), scenario{name: replayName, doc: "recorded requests, replayed"})
	var names []string
	var there []scenario
	for _, r := range rows {
		if !slices.ContainsFunc(there, func(s scenario) bool { return s.name == r.Scenario }) {
			i := slices.IndexFunc(known, func(s scenario) bool { return s.name == r.Scenario })
			if i < 0 {
				return fmt.Errorf("%s: no scenario %q", o.draw, r.Scenario)
			}
			there = append(there, known[i])
		}
		if !slices.Contains(names, r.Allocator) {
			names = append(names, r.Allocator)
		}
	}
	chosen, err := choose("scenario", o.scenarios, there, func(s scenario) string { return s.name })
	if err != nil {
		return fmt.Errorf("%s: %w", o.draw, err)
	}
	if names, err = choose("allocator", o.allocators, names, func(name string) string { return name }); err != nil {
		return fmt.Errorf("%s: %w", o.draw, err)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !slices.Contains(names, r.Allocator) || !strings.Contains(r.Case, o.cases) })
	if len(rows) == 0 {
		return fmt.Errorf("%s: no case has %q in its name", o.draw, o.cases)
	}
	files, err := drawAll(o.plots, origin(notes, o.draw), chosen, rows)
	for _, file := range files {
		_, said := fmt.Fprintln(stdout, file)
		err = errors.Join(err, said)
	}
	return err
}
