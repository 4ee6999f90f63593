// Command allocbench runs every allocator of this module through the same
// requests and shows what they cost, in time and in memory.
//
// Figures are host time for each operation: means of loops without a clock in them, their spread
// over the runs, and percentiles of operations timed one by one, without the clock's own cost.
// Peak live is the largest sum of requested bytes, reserved the allocator's bytes from the driver
// at its peak. For another project's allocator, whose rules only are simulated, just these two are
// shown.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"mlpool/internal/program"
	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
	"mlpool/tools/allocbench/internal/allreduce"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
	"mlpool/tools/allocbench/internal/replay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr, bench.ThisMachine)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(*launch.ReportedError)):
		os.Exit(1) // rank 0 prints it
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(text.Wrapped(os.Stderr), "allocbench: interrupted: the rows above were measured before")
		os.Exit(130)
	default:
		fmt.Fprintf(text.Wrapped(os.Stderr), "allocbench: %v\n", err)
		os.Exit(1)
	}
}

// run is the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, open func() (bench.Machine, error)) error {
	columns := text.Columns(stdout)
	stdout = text.Locale{Writer: text.Wrapped(stdout)}
	o, err := parse(args, text.Wrapped(stderr))
	switch {
	case err != nil:
		return err
	case o.list:
		return list(stdout)
	case o.version:
		_, err := fmt.Fprintln(stdout, program.Facts())
		return err
	case o.completion != "":
		_, err := io.WriteString(stdout, script(o.completion))
		return err
	case o.cards:
		return o.printCards(ctx, stdout)
	case o.since != "" && o.report == "":
		_, err := o.growth(stdout)
		return err
	case o.exportRMM != "":
		return o.export(stdout)
	case o.draw != "":
		return o.redraw(stdout)
	}
	var process launch.Process
	if o.scenarios == allreduce.Name {
		if process, err = allreduce.RankFromEnv(); err != nil {
			return err
		}
		if process.Rank != 0 {
			stdout, stderr = io.Discard, io.Discard
			o.csv, o.plots = "", ""
		}
	}
	chosen, allocators, err := o.selection()
	if none := (*replay.NoEventsError)(nil); errors.As(err, &none) {
		return o.explainSegments(ctx, stdout, none)
	}
	if err != nil {
		return err
	}
	if err := o.ready(); err != nil {
		return err
	}
	m, err := open()
	if err != nil {
		return err
	}
	if m.Addresses && o.allocators == "" {
		allocators = slices.DeleteFunc(allocators, func(a bench.Contender) bool { return a.Name == bench.OnGPU })
	}
	s := &session{
		options: o, machine: m, contenders: allocators,
		table: &draw.Table{W: stdout, Columns: columns}, stdout: stdout, warm: map[string][]float64{},
		stderr: stderr,
	}
	notes := s.notes(args)
	s.table.Printf("%s\n", strings.Join(notes, "\n"))
	if o.scenarios == allreduce.Name {
		err = s.allReduce(ctx, process)
	} else {
		err = s.measureAll(ctx, chosen)
	}
	return errors.Join(err, s.table.Err, s.writeReport(ctx), o.write(notes, chosen, s.rows, err == nil))
}

// notes returns the notes of the CSV.
func (s *session) notes(args []string) []string {
	notes := []string{
		s.machine.Name,
		fmt.Sprintf("%s, clock %v", time.Now().Format("2006-01-02 15:04 MST"), bench.Clock),
		strings.Join(append([]string{"allocbench"}, args...), " "),
	}
	if s.machine.Note != "" {
		notes = append(notes, s.machine.Note)
	}
	if s.runs == 1 {
		notes = append(notes, "-runs 1: nothing tells how far runs differ")
	}
	if s.quick {
		notes = append(notes, "-quick: times mean nothing, and memory counts for -trace and -traces alone")
	}
	return notes
}

func list(w io.Writer) error {
	var b strings.Builder
	b.WriteString("scenarios:\n")
	for _, s := range append(bench.Scenarios(),
		bench.Scenario{Name: replay.Name, Doc: "the requests in a file; see -trace and -traces"},
		bench.Scenario{Name: allreduce.Name, Doc: allreduce.Doc + ": mpirun -np 2 allocbench -scenario allreduce"},
	) {
		fmt.Fprintf(&b, "  %-14s %s\n", s.Name, s.Doc)
	}
	b.WriteString("allocators:\n")
	for _, a := range bench.Contenders() {
		fmt.Fprintf(&b, "  %-16s %s\n", a.Name, a.Doc)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
