package configs

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A key is a name with its section, such as "train.bsz", and the field behind it.
type key struct {
	name string
	field
}

// A field is a field of a Config. set assigns a TOML value: an int64, float64, string, bool,
// time, array, table or tooLarge.
type field struct {
	set    func(c *Config, v any) error
	get    func(c *Config) any
	want   string   // what its values are
	values []string // all values, if they can be listed
}

// newField returns a field that is stored where at points. want says what its values are; parse
// returns one, unless v is something else.
func newField[T any](at func(*Config) *T, want string, parse func(v any) (x T, ok bool)) field {
	return field{
		set: func(c *Config, v any) error {
			x, ok := parse(v)
			if !ok {
				return fmt.Errorf("is %s, want %s", show(v), want)
			}
			*at(c) = x
			return nil
		},
		get:  func(c *Config) any { return *at(c) },
		want: want,
	}
}

// tooLarge is the text of a number that no int64 or float64 holds.
type tooLarge string

func integer[T int | uint64](lo, hi int64, at func(*Config) *T) field {
	return newField(at, fmt.Sprintf("an integer from %d to %d", lo, hi), func(v any) (T, bool) {
		i, ok := v.(int64)
		return T(i), ok && i >= lo && i <= hi
	})
}

// maxBytes is more memory than any device has.
const maxBytes = 1 << 46

// powerOfTwo is 0, or a power of two from lo to maxBytes.
func powerOfTwo(lo int64, at func(*Config) *int) field {
	return newField(at, fmt.Sprintf("0 or a power of two from %d to %d", lo, maxBytes), func(v any) (int, bool) {
		i, ok := v.(int64)
		return int(i), ok && (i == 0 || i >= lo && i <= maxBytes && i&(i-1) == 0)
	})
}

// number is an integer, a float, or a string with a fraction such as 1/64.
func number(v any) (f float64, ok bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case string:
		over, under, _ := strings.Cut(v, "/")
		a, errA := strconv.Atoi(over)
		b, errB := strconv.Atoi(under)
		return float64(a) / float64(b), errA == nil && errB == nil
	}
	return 0, false
}

// upTo is a number from 0 to most.
func upTo(most float64, at func(*Config) *float64) field {
	return newField(at, fmt.Sprintf("a number from 0 to %v", most), func(v any) (float64, bool) {
		f, ok := number(v)
		return f, ok && f >= 0 && f <= most // not NaN either
	})
}

// positive is a number that as a float32 is finite and above 0.
func positive(at func(*Config) *float32) field {
	return newField(at, "a positive number that a float32 holds", func(v any) (float32, bool) {
		f, ok := number(v)
		x := float32(f)
		return x, ok && x > 0 && x <= math.MaxFloat32 // not NaN either
	})
}

func boolean(at func(*Config) *bool) field {
	f := newField(at, "true or false", func(v any) (b, ok bool) {
		b, ok = v.(bool)
		return b, ok
	})
	f.values = []string{"true", "false"}
	return f
}

func text(at func(*Config) *string) field {
	return newField(at, "a string in quotes", func(v any) (s string, ok bool) {
		s, ok = v.(string)
		return s, ok
	})
}

// traceFile is empty, or a path whose extension names the format.
func traceFile(at func(*Config) *string) field {
	return newField(at, "a file that ends in .csv, .json or .pickle", func(v any) (string, bool) {
		s, ok := v.(string)
		return s, ok && (s == "" || slices.Contains([]string{".csv", ".json", ".pickle"}, filepath.Ext(s)))
	})
}

func oneOf(at func(*Config) *string, valid ...string) field {
	f := newField(at, `"`+strings.Join(valid, `" or "`)+`"`, func(v any) (string, bool) {
		s, ok := v.(string)
		return s, ok && slices.Contains(valid, s)
	})
	f.values = valid
	set := f.set
	f.set = func(c *Config, v any) error {
		err := set(c, v)
		s, _ := v.(string)
		word := strings.ToLower(s)
		if word == "gpu" {
			word = "cuda"
		}
		if near := Nearest(word, valid); err != nil && near >= 0 {
			err = fmt.Errorf("%w: did you mean %q?", err, valid[near])
		}
		return err
	}
	return f
}

// show describes a value in an error, on one line.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", short(v))
	case tooLarge:
		return fmt.Sprintf("%s, beyond TOML's range", short(string(v)))
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".eIN") { // 600.0 must not look like 600
			s += ".0"
		}
		return s
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "an array"
	}
	return fmt.Sprint(v)
}

// Nearest returns the index of the name nearest to word, or -1 if every name is more than
// two typing errors away.
func Nearest(word string, names []string) int {
	near, nearest := -1, 3
	for i, name := range names {
		if d := distance(word, name); d < nearest && d < len(name) {
			near, nearest = i, d
		}
	}
	return near
}

// distance is the edit distance of a and b, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of a's prefix so far to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
