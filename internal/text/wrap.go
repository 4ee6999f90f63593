package text

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// Columns returns the width of the terminal that w is, or 0 if w is none. COLUMNS in the environment overrides it, as
// for other programs.
func Columns(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
}

// A wrapping breaks lines at spaces.
type wrapping struct {
	io.Writer
	columns int
}

// Wrapped returns a writer of whole lines to the terminal w, which breaks those that are too long. If w is no terminal
// it returns w.
func Wrapped(w io.Writer) io.Writer {
	if n := Columns(w); n > 0 {
		return wrapping{w, n}
	}
	return w
}

func (w wrapping) Write(p []byte) (int, error) {
	var b strings.Builder
	for line := range strings.Lines(string(p)) {
		b.WriteString(Wrap(line, w.columns))
	}
	if _, err := io.WriteString(w.Writer, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Wrap breaks a line at spaces, so that no part has more than some columns unless a single word has. The parts after
// the first begin where the last cell of the line does, if two spaces or more precede it, or else further right than
// the line.
func Wrap(line string, columns int) string {
	columns = max(columns, 20)
	line = strings.ReplaceAll(line, "    \t", "        ") // as package flag indents
	runes := []rune(strings.TrimRight(line, " \n"))
	start := 0 // of the text
	for start < len(runes) && runes[start] == ' ' {
		start++
	}
	if over := start - columns/2; over > 0 && len(runes) > columns {
		runes, start = runes[over:], columns/2
	}
	indent := start + 2
	for i := start; i+2 < len(runes) && i < columns/2; i++ {
		if runes[i] == ' ' && runes[i+1] == ' ' && runes[i+2] != ' ' {
			indent = i + 2
		}
	}
	var b strings.Builder
	for len(runes) > columns {
		at := columns
		for at > start && runes[at] != ' ' {
			at--
		}
		if at == start { // one word is too long
			if at = columns + slices.Index(runes[columns:], ' '); at < columns {
				break
			}
		}
		b.WriteString(strings.TrimRight(string(runes[:at]), " ") + "\n")
		start = indent
		runes = append([]rune(strings.Repeat(" ", indent)), []rune(strings.TrimLeft(string(runes[at:]), " "))...)
	}
	b.WriteString(string(runes))
	if strings.HasSuffix(line, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}
