package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// LineWidth is the most columns of a line of output: those of a usual terminal.
const LineWidth = 80

// Short is a number with so many decimals, or with none from 1000 on.
func Short(v float64, decimals int) string {
	if v >= 1000 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// PrintEntry prints a name, and a text from a column on, in lines that fit.
func PrintEntry(b *strings.Builder, column int, name, text string) {
	b.WriteString(Folded(fmt.Sprintf("  %-*s", column-3, name), column, text))
}

// Folded is a line that goes on with the words of a text, in as many lines as make it fit. All
// but the first have their words from a column on.
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

// PrintColumns prints rows of a name and cells, the columns one below another where they do not fit
// side by side.
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
