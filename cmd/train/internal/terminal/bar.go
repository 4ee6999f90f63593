package terminal

import (
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// terminalOf is the terminal that w writes to, or nil. One that is called dumb, such as an
// editor's, knows no control codes.
func terminalOf(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// The least widths of a terminal, in columns, for the rate and the remaining time behind a bar, and
// for the count as well where it fits.
const (
	mediumBar = 60
	wideBar   = 90
)

// A bar is drawn on the line of a terminal that the cursor is on, in as many columns as
// there are at the time. The cursor is left at the start of the line: where a window
// that gets narrower breaks the line in two, all of it is still behind the cursor.
type bar struct {
	terminal             *os.File
	wide, medium, narrow *progressbar.ProgressBar // which make the text
}

// eraseBelow erases from the cursor to the end of the screen.
const eraseBelow = "\x1b[J"

// newBar makes a bar of a total, or of -1 where none is known, for a terminal. Options
// are for the numbers behind it.
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

// set draws the bar with so much done.
func (b *bar) set(done int64) error {
	for _, text := range []*progressbar.ProgressBar{b.wide, b.medium, b.narrow} {
		if err := text.Set64(done); err != nil {
			return err
		}
	}
	return b.draw()
}

// describe puts a text in front of the bar from the next set on.
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
	columns-- // a terminal may begin a new line behind its last one
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

// textOf is the line of a bar.
func textOf(text *progressbar.ProgressBar) []rune { return []rune(strings.Trim(text.String(), "\r")) }

// spare are what a line that is too long goes without: first the blocks, then the time so far.
var spare = []*regexp.Regexp{regexp.MustCompile(`\|[^|]*\| `), regexp.MustCompile(`(\[)[^:]*:`)}

// erase makes room for a line of output.
func (b *bar) erase() error {
	_, err := b.terminal.WriteString("\r" + eraseBelow)
	return err
}
