package traintest

import (
	"bufio"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// A Screen is what a terminal shows, and the lines that have scrolled off. It knows the control
// codes of a bar.
type screen struct {
	t           *testing.T
	columns     int
	rows        [][]rune
	row, column int
	master, Tty *os.File
	in          *bufio.Reader
}

// NewScreen returns a screen with the given columns. Write to its TTY.
func NewScreen(t *testing.T, columns int) *screen {
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
	s := &screen{t: t, rows: [][]rune{nil}, master: master, Tty: tty, in: bufio.NewReader(master)}
	s.Resize(columns)
	t.Setenv("TERM", "xterm")
	return s
}

// Resize changes the width for later output, and cuts what no longer fits.
func (s *screen) Resize(columns int) {
	s.t.Helper()
	if err := pty.Setsize(s.Tty, &pty.Winsize{Rows: 24, Cols: uint16(columns)}); err != nil {
		s.t.Fatal(err)
	}
	s.columns = columns
	for i, row := range s.rows {
		s.rows[i] = row[:min(len(row), columns)]
	}
}

// EndOfOutput ends the output that Read reads.
const EndOfOutput = '\x00'

// Read reads until EndOfOutput and returns the rows.
func (s *screen) Read() []string {
	s.t.Helper()
	for {
		r, _, err := s.in.ReadRune()
		if err != nil {
			s.t.Fatal(err)
		}
		if r == EndOfOutput {
			break
		}
		s.put(r)
	}
	var rows []string
	for _, row := range s.rows {
		rows = append(rows, strings.TrimRight(string(row), " "))
	}
	for len(rows) > 0 && rows[len(rows)-1] == "" {
		rows = rows[:len(rows)-1]
	}
	return rows
}

// Show ends the output and returns the rows.
func (s *screen) Show() []string {
	s.t.Helper()
	if _, err := s.Tty.WriteString(string(EndOfOutput)); err != nil {
		s.t.Fatal(err)
	}
	return s.Read()
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
