// Command figures writes the tables of the documents and their pictures from the measurements
// in assets.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"mlpool/internal/output"
)

const usage = `usage: figures [flags]

Writes the tables of README.md, assets/README.md and tools/allocbench/README.md between
their marks, and epochs.png, peers.png, sweep_h200.png, torch_memory.png and ranks.png in
assets.

flags:
`

func main() {
	err := run(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "figures: %v\n", err)
		os.Exit(1)
	}
}

// run runs the command.
func run(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("figures", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	check := flags.Bool("check", false, "write nothing; fail if a table is out of date")
	root := flags.String("root", ".", "the `folder` of the repository")
	sweep := flags.String("sweep", "", "draw only a `CSV` of tools/peers.py --sweep, to a PNG beside it")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; see figures -h", err)
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see figures -h", flags.Arg(0))
	}
	if *sweep != "" {
		return drawSweepFile(*sweep)
	}
	s := source{dir: filepath.Join(*root, "assets")}
	var errs []error
	for _, t := range tables {
		text := t.text(&s)
		if s.err != nil {
			return s.err
		}
		errs = append(errs, t.put(*root, text, *check))
	}
	for _, p := range pictures {
		if *check {
			continue
		}
		var b bytes.Buffer
		if err := p.draw(&b, &s); err != nil {
			return err
		}
		errs = append(errs, output.WriteFile(filepath.Join(s.dir, p.name+".png"), b.Bytes()))
	}
	return errors.Join(errs...)
}

// A picture in assets is drawn from a file.
type picture struct {
	name, file string
	draw       func(io.Writer, *source) error
}

var pictures = []picture{
	{"epochs", training, drawEpochs},
	{peersName, peersFile, drawPeers},
	{sweepName, sweepFile, func(w io.Writer, s *source) error { return drawSweep(w, s, sweepFile) }},
	{torchName, torchSteps, drawTorch},
	{ranksName, scalingFile, drawRanks},
}

// A table is a part of a document between marks that name it.
type table struct {
	name, document string
	text           func(*source) string
}

// put writes text between the table's marks. With check it writes nothing and returns an
// error if the text is another.
func (t table) put(root, text string, check bool) error {
	path := filepath.Join(root, filepath.FromSlash(t.document))
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+t.name+": written by tools/figures from here -->\n", "<!-- to here -->\n"
	before, rest, begins := strings.Cut(string(old), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s: no line %q with %q after it", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	now := before + begin + text + end + after
	switch {
	case now == string(old):
		return nil
	case check:
		return fmt.Errorf("%s: the table %s is out of date: run go run ./tools/figures", path, t.name)
	}
	return output.WriteFile(path, []byte(now))
}
