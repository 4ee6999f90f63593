// Command figures writes the tables of the documents and the pictures of epochs and of
// peers, from the files of figures in assets.
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
)

const usage = `usage: figures [flags]

Writes the tables of README.md, assets/README.md and tools/allocbench/README.md, each
between its marks, and assets/epochs.png and assets/peers.png.

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

// run is the command.
func run(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("figures", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	check := flags.Bool("check", false, "write nothing: an error if a table is not that of the figures")
	root := flags.String("root", ".", "the `folder` of the repository")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; see figures -h", err)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag; see figures -h", flags.Arg(0))
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
		errs = append(errs, os.WriteFile(filepath.Join(s.dir, p.name+".png"), b.Bytes(), 0o666))
	}
	return errors.Join(errs...)
}

// pictures are drawn in assets.
var pictures = []struct {
	name string
	draw func(io.Writer, *source) error
}{{"epochs", drawEpochs}, {peersName, drawPeers}}

// A table is part of a document, between marks that name it.
type table struct {
	name, document string
	text           func(*source) string
}

// put writes the text between the table's marks, or if it is only to be checked says
// that another one is there.
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
		return fmt.Errorf("%s: has no line %q with %q after it", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	now := before + begin + text + end + after
	switch {
	case now == string(old):
		return nil
	case check:
		return fmt.Errorf("%s: the table of %s is not that of the figures: run go run ./tools/figures", path, t.name)
	}
	return os.WriteFile(path, []byte(now), 0o666)
}
