package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// LineWidth is the number of columns that lines of output fit in.
const LineWidth = 80

// Short formats v with the given number of decimals, or with none from 1000 on.
func Short(v float64, decimals int) string {
	if v >= 1000 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// PrintEntry writes a name and, from a column on, a text, in lines that fit.
func PrintEntry(b *strings.Builder, column int, name, text string) {
	b.WriteString(Folded(fmt.Sprintf("  %-*s", column-3, name), column, text))
}

// Folded appends the words of text to line, and breaks the result into lines that fit. All lines
// but the first start at column.
func Folded(line string, column int, text string) string {
	var b strings.Builder
	for _, word := range strings.Fields(text) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > LineWidth {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", column-1)
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}

// PrintColumns writes rows of a name and cells. Columns that do not fit side by side follow below.
func PrintColumns(stdout io.Writer, rows [][]string) {
	width := func(column int) (most int) {
		for _, cells := range rows {
			most = max(most, utf8.RuneCountInString(cells[column]))
		}
		return most
	}
	for from := 1; from < len(rows[0]); {
		to, columns := from+1, 2+width(0)+2+width(from)
		for to < len(rows[0]) && columns+2+width(to) <= LineWidth {
			columns += 2 + width(to)
			to++
		}
		w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w)
		for _, cells := range rows {
			fmt.Fprintf(w, "%s\t%s\t\n", cells[0], strings.Join(cells[from:to], "\t"))
		}
		w.Flush()
		from = to
	}
}

// Output is a writer that remembers its first error: a run that nobody can read trains on, since
// its logs may be written, but does not succeed.
type Output struct {
	W   io.Writer
	Err error
}

func (o *Output) Write(p []byte) (int, error) {
	n, err := o.W.Write(p)
	if err == nil {
		return n, nil
	}
	if o.Err == nil {
		o.Err = err
	}
	return n, o.Err // which runCommand tells from others
}
