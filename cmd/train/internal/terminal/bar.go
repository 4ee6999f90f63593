// Package terminal writes for people: lines that fit, tables, and progress bars.
//
// A bar is drawn only on a terminal that understands control codes, and never mixes with lines that
// are printed through it. On any other writer a bar draws nothing.
package terminal

import (
	"fmt"
	"io"
	"mlpool/internal/text"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminalOf returns the terminal that w writes to, or nil. A terminal of type dumb, such as an
// editor's, knows no control codes.
func terminalOf(w io.Writer) *os.File {
	if l, ok := w.(text.Locale); ok {
		w = l.Writer
	}
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// A bar is drawn on the line of the cursor, as wide as the terminal is at the time. The cursor
// stays at the start of the line, so that erasing from there also removes a line that a narrower
// window has broken in two.
type bar struct {
	terminal *os.File
	what     string // the text before the bar
	total    int64  // -1: unknown
	rate     func(perSecond float64) string
	began    time.Time
}

// eraseBelow erases from the cursor to the end of the screen.
const eraseBelow = "\x1b[J"

// set draws the bar at done, or erases it if that is the total.
func (b *bar) set(done int64) error {
	columns, _, err := term.GetSize(int(b.terminal.Fd()))
	if err != nil {
		return err
	}
	if done == b.total {
		return b.erase()
	}
	line := []rune(text.InLocale(b.line(done, columns-1))) // a terminal may break the line after its last column
	return b.show(string(line[:min(len(line), max(columns-1, 0))]))
}

// show replaces the line of the cursor.
func (b *bar) show(line string) error {
	_, err := b.terminal.WriteString("\r" + line + eraseBelow + "\r")
	return err
}

// line returns what there is to say at done, as far as it fits in columns: the share and the blocks
// of a known total, the rate, and the remaining time.
func (b *bar) line(done int64, columns int) string {
	line, spent := b.what, max(time.Since(b.began), time.Millisecond)
	rest := "  " + b.rate(float64(done)/spent.Seconds())
	if b.total > 0 {
		line += fmt.Sprintf(" %3d%%", 100*done/b.total)
		if done > 0 {
			left := time.Duration(float64(spent) * float64(b.total-done) / float64(done))
			rest += ", " + left.Round(time.Second).String() + " left"
		}
	}
	free := columns - utf8.RuneCountInString(line+rest) - len(" ||")
	if free < 0 {
		return line
	}
	if blocks := min(free, 30); b.total > 0 && blocks >= 5 {
		full := int(int64(blocks) * done / b.total)
		line += " |" + strings.Repeat("█", full) + strings.Repeat(" ", blocks-full) + "|"
	}
	return line + rest
}

// erase removes the bar.
func (b *bar) erase() error { return b.show("") }
