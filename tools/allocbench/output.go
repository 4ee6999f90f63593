package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"mlpool/internal/report"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
	"mlpool/tools/allocbench/internal/explain"
	"mlpool/tools/allocbench/internal/replay"
)

// write writes the rows to the files of the options, or compares them with these files.
// Incomplete rows are written, but neither compared nor put into a README.
func (o options) write(notes []string, chosen []bench.Scenario, rows []bench.Row, all bool) error {
	var errs []error
	if o.csv != "" && !o.check {
		errs = append(errs, draw.WriteFile(o.csv, func(w io.Writer) error { return draw.WriteCSV(w, notes, rows) }))
	}
	if all && o.check {
		errs = append(errs, o.compare(rows))
	} else if all && o.readme != "" {
		errs = append(errs, o.writeTable(rows))
	}
	if o.plots != "" {
		_, err := draw.All(o.plots, draw.Origin(notes, o.csv), chosen, rows)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeTable is -readme. It rounds the figures like the CSV, which -check reads.
func (o options) writeTable(rows []bench.Row) error {
	kept, err := draw.AsWritten(rows)
	if err != nil {
		return err
	}
	return draw.WriteReadme(o.readme, kept, false)
}

// compare is -check.
func (o options) compare(rows []bench.Row) error {
	_, kept, err := draw.ReadFigures(o.csv)
	if err != nil {
		return err
	}
	err = draw.Check(o.csv, kept, rows)
	if o.readme != "" {
		err = errors.Join(err, draw.WriteReadme(o.readme, kept, true))
	}
	return err
}

// export writes the trace as RMM's CSV, and describes it.
func (o *options) export(stdout io.Writer) error {
	t, doc, err := replay.Events(o.trace, o.traceDevice)
	if err != nil {
		return err
	}
	if err := draw.WriteFile(o.exportRMM, t.WriteRMM); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, doc)
	return err
}

// growth is -since.
func (o options) growth(stdout io.Writer) (*report.Growth, error) {
	after, afterDoc, err := replay.Read(o.trace, o.traceDevice)
	if err != nil {
		return nil, err
	}
	before, beforeDoc, err := replay.Read(o.since, o.traceDevice)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(stdout, "%s\n%s\n", beforeDoc, afterDoc); err != nil {
		return nil, err
	}
	g := explain.Since(filepath.Base(o.since), before, after)
	return g, explain.PrintSince(stdout, g)
}

// printCards is -cards.
func (o options) printCards(ctx context.Context, stdout io.Writer) error {
	among, err := bench.Named(cmp.Or(o.allocators, explain.Allocators))
	if err != nil {
		return err
	}
	paths := []string{o.trace}
	if o.traces != "" {
		if paths, err = replay.Below(o.traces); err != nil {
			return err
		}
	}
	return explain.PrintCards(ctx, stdout, paths, o.traceDevice, among)
}

// redraw is -draw. It prints the files that it wrote. A CSV may have scenarios and allocators of
// other programs, so -scenario and -allocator choose among those of the CSV.
func (o options) redraw(stdout io.Writer) error {
	notes, rows, err := draw.ReadFigures(o.draw)
	if err != nil {
		return err
	}
	known := append(bench.Scenarios(), bench.Scenario{Name: replay.Name, Doc: "recorded requests, replayed"})
	var names []string
	var there []bench.Scenario
	for _, r := range rows {
		if !slices.ContainsFunc(there, func(s bench.Scenario) bool { return s.Name == r.Scenario }) {
			i := slices.IndexFunc(known, func(s bench.Scenario) bool { return s.Name == r.Scenario })
			if i < 0 {
				return fmt.Errorf("%s: no scenario %q", o.draw, r.Scenario)
			}
			there = append(there, known[i])
		}
		if !slices.Contains(names, r.Allocator) {
			names = append(names, r.Allocator)
		}
	}
	chosen, err := bench.Choose("scenario", o.scenarios, there, func(s bench.Scenario) string { return s.Name })
	if err != nil {
		return fmt.Errorf("%s: %w", o.draw, err)
	}
	if names, err = bench.Choose("allocator", o.allocators, names, func(name string) string { return name }); err != nil {
		return fmt.Errorf("%s: %w", o.draw, err)
	}
	rows = slices.DeleteFunc(rows, func(r bench.Row) bool {
		return !slices.Contains(names, r.Allocator) || !strings.Contains(r.Case, o.cases)
	})
	if len(rows) == 0 {
		return fmt.Errorf("%s: no case has %q in its name", o.draw, o.cases)
	}
	files, err := draw.All(o.plots, draw.Origin(notes, o.draw), chosen, rows)
	for _, file := range files {
		_, said := fmt.Fprintln(stdout, file)
		err = errors.Join(err, said)
	}
	return err
}
