package text

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Bytes(0), "0 B"}, {Bytes(1023), "1023 B"}, {Bytes(1 << 10), "1.0 KiB"}, {Bytes(3277), "3.2 KiB"}, {Bytes(102 << 20), "102.0 MiB"},
		{Bytes(1000 << 20), "1000.0 MiB"}, {Bytes(3 << 30), "3.00 GiB"}, {Bytes(80 << 30), "80.0 GiB"}, {Bytes(100 << 30), "100 GiB"},
		{Bytes(1 << 40), "1.00 TiB"}, {Bytes(math.MaxInt64), "8.00 EiB"},
		{Duration(0.5), "0.5 ns"}, {Duration(29.44), "29.4 ns"}, {Duration(999.4), "999 ns"}, {Duration(1000), "1 µs"}, {Duration(12345), "12.3 µs"},
		{Duration(5e6), "5 ms"}, {Duration(2.5e9), "2.5 s"}, {Duration(math.NaN()), ""},
		{Count(0, "hidden layer"), "0 hidden layers"}, {Count(1, "call"), "1 call"}, {Count(2, "call"), "2 calls"}, {Count(2, "stitch"), "2 stitches"},
		{List(nil, "and"), ""}, {List([]string{"a"}, "and"), "a"}, {List([]string{"a", "b"}, "or"), "a or b"}, {List([]string{"a", "b", "c"}, "and"), "a, b and c"},
		{OneLine("one"), "one"}, {OneLine("one\ntwo\n\n\tthree\n"), "one; two; three"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"short\n", "short\n"},
		{"exactly twenty runes\n", "exactly twenty runes\n"},
		{"a line that is too long for it\n", "a line that is too\n  long for it\n"},
		{"  1 B  one two three four five\n", "  1 B  one two three\n       four five\n"},
		{"  µµ µµ µµ µµ µµ µµ µµ", "  µµ µµ µµ µµ µµ µµ\n    µµ"},
		{"                      far right, too far", "          far right,\n            too far"},
		{"a averyveryveryverylongword b", "a\n  averyveryveryverylongword\n  b"},
	} {
		if got := Wrap(c.line, 20); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestInLocale(t *testing.T) {
	const said = "1 µs – 2×3 …é\n"
	for _, c := range []struct{ all, ctype, lang, want string }{
		{"", "", "", said}, {"C.UTF-8", "C", "C", said}, {"", "en_US.utf8", "C", said}, {"C", "", "en_US.UTF-8", "1 us - 2x3 ...é\n"}, {"", "", "POSIX", "1 us - 2x3 ...é\n"},
	} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", c.ctype)
		t.Setenv("LANG", c.lang)
		var b strings.Builder
		if n, err := (Locale{&b}).Write([]byte(said)); n != len(said) || err != nil || b.String() != c.want {
			t.Errorf("%+v: %q, %d, %v", c, &b, n, err)
		}
	}
}

// TestWrapEnds wraps lines of any shape to any width, and loses no word.
func TestWrapEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", r.IntN(60)))
		for range r.IntN(20) {
			b.WriteString(strings.Repeat("x", r.IntN(30)) + strings.Repeat(" ", r.IntN(4)))
		}
		line := b.String()
		if got := Wrap(line, r.IntN(100)); !slices.Equal(strings.Fields(got), strings.Fields(line)) {
			t.Fatalf("%q becomes %q", line, got)
		}
	}
}
