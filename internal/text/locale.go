package text

import (
	"cmp"
	"io"
	"os"
	"strings"
)

// plain has the characters that programs of this module print beyond ASCII.
var plain = strings.NewReplacer("µ", "u", "–", "-", "−", "-", "×", "x", "·", "*", "█", "#", "…", "...", "→", "->", "≤", "<=", "≥", ">=", "²", "^2")

// InLocale returns s as the locale of the environment has it: in one without UTF-8, such as C, symbols are written in
// ASCII. Names of files stay as they are but for these symbols.
func InLocale(s string) string {
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"), "utf-8"))
	if strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8") {
		return s
	}
	return plain.Replace(s)
}

// A Locale is a writer of text as InLocale has it.
type Locale struct{ io.Writer }

func (l Locale) Write(p []byte) (int, error) {
	if _, err := l.Writer.Write([]byte(InLocale(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}
