package traintest

import (
	"bufio"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"

	"mlpool/internal/must"
)

// A Terminal is one of some columns. Write to its TTY.
type Terminal struct {
	t           *testing.T
	master, Tty *os.File
	in          *bufio.Reader
}

// NewTerminal returns a terminal with the given columns.
func NewTerminal(t *testing.T, columns int) *Terminal {
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
	t.Setenv("TERM", "xterm")
	s := &Terminal{t, master, tty, bufio.NewReader(master)}
	s.Resize(columns)
	return s
}

// Resize changes the width.
func (s *Terminal) Resize(columns int) {
	s.t.Helper()
	must.OK(s.t, pty.Setsize(s.Tty, &pty.Winsize{Rows: 24, Cols: uint16(columns)}))
}

const endOfOutput = "\x00"

// End ends the output that Read reads.
func (s *Terminal) End() {
	_, err := s.Tty.WriteString(endOfOutput)
	must.OK(s.t, err)
}

// aBar is a bar, or nothing in its place: the cursor returns to the start of the line.
var aBar = regexp.MustCompile(`\r([^\r\n]*)\x1b\[J\r`)

// Read reads until End. It returns the lines, and the bars that were drawn one over the other at the end of these
// lines; the last is what remains.
func (s *Terminal) Read() (lines string, bars []string) {
	s.t.Helper()
	text, err := s.in.ReadString(endOfOutput[0])
	must.OK(s.t, err)
	text = strings.ReplaceAll(strings.TrimSuffix(text, endOfOutput), "\r\n", "\n")
	for _, m := range aBar.FindAllStringSubmatch(text, -1) {
		bars = append(bars, m[1])
	}
	return aBar.ReplaceAllString(text, ""), bars
}

// Show ends the output and reads it.
func (s *Terminal) Show() (lines string, bars []string) {
	s.t.Helper()
	s.End()
	return s.Read()
}
