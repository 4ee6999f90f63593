package report

import (
	"bytes"
	"fmt"
	"html"
)

// A markup is HTML, which is written as it is. Every other text is escaped.
type markup string

// escaped is Sprintf for HTML. It escapes its arguments, so that they can be in an element or a quoted attribute,
// but for markup and integers. What is in a script or style must be markup.
func escaped(format string, args ...any) markup {
	for i, a := range args {
		switch a := a.(type) {
		case markup, int:
		case string:
			args[i] = html.EscapeString(a)
		default:
			args[i] = html.EscapeString(fmt.Sprint(a))
		}
	}
	return markup(fmt.Sprintf(format, args...))
}

// A document is a page while it is written.
type document struct {
	bytes.Buffer
	Page
	colours   colours
	laneBytes int64 // of all maps
}

// putf writes what escaped returns.
func (d *document) putf(format string, args ...any) {
	d.WriteString(string(escaped(format, args...)))
}

// classed returns the attribute of a style class, or "".
func classed(class string) markup {
	if class == "" {
		return ""
	}
	return escaped(` class="%s"`, class)
}

// keyed returns a mark in the colour of a style class, or "".
func keyed(class string) markup {
	if class == "" {
		return ""
	}
	return escaped(`<i class="key %s"></i>`, class)
}

// cells returns cells of a row.
func cells(all ...any) (row markup) {
	for _, text := range all {
		row += escaped("<td>%v</td>", text)
	}
	return row
}
