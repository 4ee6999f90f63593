// Package terminal writes for people: lines that fit, tables, and progress bars.
//
// A bar is drawn only on a terminal that understands control codes, and never mixes with lines that
// are printed through it. On any other writer a bar draws nothing.
package terminal

import (
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// terminalOf returns the terminal that w writes to, or nil. A terminal of type dumb, such as an
// editor's, knows no control codes.
func terminalOf(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// A bar shows the rate and the remaining time from mediumBar columns on, and the count from wideBar
// on if it fits.
const (
	mediumBar = 60
	wideBar   = 90
)

// A bar is drawn on the line of the cursor, as wide as the terminal is at the time. The cursor
// stays at the start of the line, so that erasing from there also removes a line that a narrower
// window has broken in two.
type bar struct {
	terminal             *os.File
	wide, medium, narrow *progressbar.ProgressBar // they format the text
}

// eraseBelow erases from the cursor to the end of the screen.
const eraseBelow = "\x1b[J"

// newBar returns a bar for a total; -1: unknown. Options choose the numbers after the bar.
func newBar(terminal *os.File, total int64, options ...progressbar.Option) *bar {
	text := func(width int, options ...progressbar.Option) *progressbar.ProgressBar {
		return progressbar.NewOptions64(total, append(options,
			progressbar.OptionSetWriter(io.Discard),
			progressbar.OptionSetWidth(width),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetSpinnerChangeInterval(0), // with each set
		)...)
	}
	return &bar{
		terminal: terminal,
		wide:     text(30, append(options, progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true))...),
		medium:   text(10, append(options, progressbar.OptionSetPredictTime(true))...),
		narrow:   text(10, progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false)),
	}
}

// set draws the bar at done.
func (b *bar) set(done int64) error {
	for _, text := range []*progressbar.ProgressBar{b.wide, b.medium, b.narrow} {
		if err := text.Set64(done); err != nil {
			return err
		}
	}
	return b.draw()
}

// describe sets the text before the bar from the next set on.
func (b *bar) describe(what string) {
	for _, text := range []*progressbar.ProgressBar{b.wide, b.medium, b.narrow} {
		text.Describe(what)
	}
}

func (b *bar) draw() error {
	columns, _, err := term.GetSize(int(b.terminal.Fd()))
	if err != nil {
		return err
	}
	if b.narrow.IsFinished() {
		return b.erase()
	}
	columns-- // a terminal may break the line after its last column
	fits := func(line []rune) bool { return len(line) <= columns }
	line := textOf(b.narrow)
	if columns+1 >= mediumBar {
		line = textOf(b.medium)
		if wide := textOf(b.wide); columns+1 >= wideBar && fits(wide) {
			line = wide
		}
		for _, part := range spare {
			if !fits(line) {
				line = []rune(part.ReplaceAllString(string(line), "$1"))
			}
		}
	}
	_, err = b.terminal.WriteString("\r" + string(line[:min(len(line), max(columns, 0))]) + eraseBelow + "\r")
	return err
}

// textOf returns the line of a bar.
func textOf(text *progressbar.ProgressBar) []rune { return []rune(strings.Trim(text.String(), "\r")) }

// spare matches what a line that is too long leaves out: first the blocks, then the elapsed time.
var spare = []*regexp.Regexp{regexp.MustCompile(`\|[^|]*\| `), regexp.MustCompile(`(\[)[^:]*:`)}

// erase removes the bar.
func (b *bar) erase() error {
	_, err := b.terminal.WriteString("\r" + eraseBelow)
	return err
}
