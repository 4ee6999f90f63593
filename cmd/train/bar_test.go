package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/schollz/progressbar/v3"
)

// A screen is what a terminal of so many columns shows, with the lines that left it at
// the top. It knows the control codes that a bar is drawn with.
type screen struct {
	t           *testing.T
	columns     int
	rows        [][]rune
	row, column int
	master, tty *os.File
	in          *bufio.Reader
}

// newScreen makes a screen, whose tty is to be written to.
func newScreen(t *testing.T, columns int) *screen {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tty.Close(), master.Close()); err != nil {
			t.Error(err)
		}
	})
	s := &screen{t: t, rows: [][]rune{nil}, master: master, tty: tty, in: bufio.NewReader(master)}
	s.resize(columns)
	t.Setenv("TERM", "xterm")
	return s
}

// resize changes the width from the next output on. What is there stays, less what no
// longer fits.
func (s *screen) resize(columns int) {
	s.t.Helper()
	if err := pty.Setsize(s.tty, &pty.Winsize{Rows: 24, Cols: uint16(columns)}); err != nil {
		s.t.Fatal(err)
	}
	s.columns = columns
	for i, row := range s.rows {
		s.rows[i] = row[:min(len(row), columns)]
	}
}

// endOfOutput is written by a test behind the output that it looks at.
const endOfOutput = '\x00'

// read takes in what was written until the mark, and returns the rows.
func (s *screen) read() []string {
	s.t.Helper()
	for {
		r, _, err := s.in.ReadRune()
		if err != nil {
			s.t.Fatal(err)
		}
		if r == endOfOutput {
			break
		}
		s.put(r)
	}
	var rows []string
	for _, row := range s.rows {
		rows = append(rows, strings.TrimRight(string(row), " "))
	}
	for len(rows) > 0 && last(rows) == "" {
		rows = rows[:len(rows)-1]
	}
	return rows
}

// show ends the output and reads it.
func (s *screen) show() []string {
	s.t.Helper()
	if _, err := s.tty.WriteString(string(endOfOutput)); err != nil {
		s.t.Fatal(err)
	}
	return s.read()
}

func (s *screen) put(r rune) {
	switch r {
	case '\r':
		s.column = 0
	case '\n':
		s.down()
	case '\x1b':
		if code, err := s.in.Peek(2); err != nil || string(code) != "[J" {
			s.t.Fatalf("control code %q, %v", code, err)
		}
		if _, err := s.in.Discard(2); err != nil {
			s.t.Fatal(err)
		}
		s.rows = s.rows[:s.row+1]
		s.rows[s.row] = s.rows[s.row][:min(s.column, len(s.rows[s.row]))]
	default:
		if s.column == s.columns {
			s.column = 0
			s.down()
		}
		row := s.rows[s.row]
		for len(row) <= s.column {
			row = append(row, ' ')
		}
		row[s.column] = r
		s.rows[s.row] = row
		s.column++
	}
}

func (s *screen) down() {
	if s.row++; s.row == len(s.rows) {
		s.rows = append(s.rows, nil)
	}
}

// TestBarFits draws a bar on terminals of each width, with lines between: it takes one
// row, the last one, and leaves nothing behind.
func TestBarFits(t *testing.T) {
	for _, columns := range []int{1, 12, 40, 80, 120, 200} {
		s := newScreen(t, columns)
		p := &progress{bar: newBar(s.tty, 100_000, progressbar.OptionShowIts(), progressbar.OptionSetItsString("steps"))}
		p.describe("epoch 10/100")
		set := func(done int64) { p.draw(func() error { return p.bar.set(done) }) }
		var want []string
		for i := range 4 {
			for tick := range 3 {
				set(int64(10_000*i + tick))
			}
			if rows := s.show(); len(rows) > len(want)+1 || columns >= 12 && !strings.HasPrefix(last(rows), "epoch 10/10"[:min(columns-1, 11)]) {
				t.Errorf("%d columns: the bar in %q", columns, rows)
			}
			line := fmt.Sprintf("line %d", i)
			if err := p.print(s.tty, line+"\n"); err != nil {
				t.Fatal(err)
			}
			for chunk := range slices.Chunk([]rune(line), columns) {
				want = append(want, strings.TrimRight(string(chunk), " "))
			}
			if rows := s.show(); !slices.Equal(rows, want) {
				t.Errorf("%d columns: %q, want %q", columns, rows, want)
			}
		}
		set(100_000)
		if rows := s.show(); !slices.Equal(rows, want) {
			t.Errorf("%d columns: %q after the last step, want %q", columns, rows, want)
		}
		if p.err != nil {
			t.Error(p.err)
		}
	}
}

// TestBarFollowsTheWindow makes a terminal narrower and wider between two ticks.
func TestBarFollowsTheWindow(t *testing.T) {
	s := newScreen(t, 120)
	b := newBar(s.tty, 1000, progressbar.OptionShowIts())
	b.describe("epoch 1/10")
	for i, columns := range []int{120, 60, 20, 59, 89, 90, 40, 200} {
		s.resize(columns)
		if err := b.set(int64(100 * (i + 1))); err != nil {
			t.Fatal(err)
		}
		rows := s.show()
		if len(rows) != 1 || len([]rune(rows[0])) >= columns || strings.Contains(rows[0], "it/s") != (columns >= 60) || strings.Contains(rows[0], "[") != (columns >= 60) {
			t.Errorf("%d columns: %q", columns, rows)
		}
	}
	if err := b.erase(); err != nil {
		t.Fatal(err)
	}
	if rows := s.show(); len(rows) != 0 {
		t.Errorf("left: %q", rows)
	}
}

// TestBarShowsTheTime draws a bar with a long description of a long training: from 60 columns on it
// ends with the rate and the whole remaining time.
func TestBarShowsTheTime(t *testing.T) {
	behind := regexp.MustCompile(`\d steps/(s|min|hr)\) \[[0-9hms:]+\]$`)
	for columns := 60; columns <= 120; columns++ {
		s := newScreen(t, columns)
		b := newBar(s.tty, 1_000_000, progressbar.OptionShowIts(), progressbar.OptionSetItsString("steps"))
		b.describe("epoch 1000/1000, in all")
		if err := b.set(1); err != nil {
			t.Fatal(err)
		}
		if rows := s.show(); len(rows) != 1 || !behind.MatchString(rows[0]) {
			t.Errorf("%d columns: %q", columns, rows)
		}
	}
}

// TestTerminal trains with both outputs on a terminal: of the bar nothing is left, and
// all lines are there once.
func TestTerminal(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	for _, columns := range []int{40, 120} {
		s := newScreen(t, columns)
		path, _ := writeConfig(t, "cpu", "")
		setConfig(t, path, "num_epochs = 3", "num_epochs = 40")
		done := make(chan int)
		go func() {
			code := runProcess(context.Background(), []string{"-compare=custom,plan:bestfit", path}, s.tty, s.tty)
			_, _ = s.tty.WriteString(string(endOfOutput)) // where it fails, read does
			done <- code
		}()
		rows := s.read()
		if code := <-done; code != 0 {
			t.Errorf("exit code %d", code)
		}
		text := strings.Join(rows, "\n")
		if strings.ContainsAny(text, "|█") {
			t.Errorf("%d columns: part of a bar is left in:\n%s", columns, text)
		}
		if n := len(regexp.MustCompile(`(?m)^(custom      |plan:bestfit)  epoch \d+/40`).FindAllString(text, -1)); n != 80 {
			t.Errorf("%d columns: %d lines of epochs, want 80:\n%s", columns, n, text)
		}
	}
}

// TestDumbTerminal draws no bar where control codes are shown as they are.
func TestDumbTerminal(t *testing.T) {
	s := newScreen(t, 80)
	for name, want := range map[string]*os.File{"xterm": s.tty, "": s.tty, "dumb": nil} {
		t.Setenv("TERM", name)
		if terminalOf(s.tty) != want {
			t.Errorf("TERM=%s: is a terminal to draw on: %v", name, want == nil)
		}
	}
}

// TestDownloadBar shows a download of a known size, and one of an unknown size.
func TestDownloadBar(t *testing.T) {
	s := newScreen(t, 100)
	d := newDownloadBar(s.tty)
	for _, c := range []struct {
		file        string
		done, total int64
		want        string
	}{
		{"images.gz", 0, 10 << 20, ""},
		{"images.gz", 5 << 20, 10 << 20, "images.gz  50%"},
		{"images.gz", 10 << 20, 10 << 20, ""},
		{"labels.gz", 0, -1, ""},
		{"labels.gz", 3000, -1, "labels.gz"},
	} {
		d.update(c.file, c.done, c.total)
		if rows := s.show(); c.want != "" && (len(rows) != 1 || !strings.Contains(rows[0], c.want)) || len(rows) > 1 {
			t.Errorf("%s, %d of %d: %q", c.file, c.done, c.total, rows)
		}
	}
	if err := d.finish(); err != nil {
		t.Fatal(err)
	}
	if rows := s.show(); len(rows) != 0 {
		t.Errorf("left: %q", rows)
	}
}

// TestBarOfNoTerminal draws to a terminal that is gone.
func TestBarOfNoTerminal(t *testing.T) {
	gone, err := os.Open(os.DevNull)
	if err == nil {
		err = gone.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	b := newBar(gone, 10)
	if err := b.set(1); err == nil {
		t.Error("no error")
	}
	if err := b.erase(); err == nil {
		t.Error("no error")
	}
}

// TestFinishWhileAnnounced finishes the bar of a run that is interrupted at its very end,
// when the announcement is printed from a goroutine of its own: for the race detector.
func TestFinishWhileAnnounced(t *testing.T) {
	s := newScreen(t, 100)
	p := newProgress(s.tty, 10, func() int64 { return 10 })
	printed := make(chan error)
	go func() { printed <- p.print(s.tty, "interrupted\n") }()
	if err := errors.Join(p.finish(), <-printed); err != nil {
		t.Error(err)
	}
	s.show()
}
