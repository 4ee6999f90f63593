package configs

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A key is a name with its section, such as "train.bsz", and what sets it.
type key struct {
	name string
	set  setter
}

// A setter puts a TOML value into a Config or returns an error that says what
// was given and what is wanted. The value is an int64, float64, string, bool,
// time, array, table or tooLarge.
type setter func(c *Config, v any) error

// tooLarge is a number, as the file has it, that no int64 or float64 holds.
type tooLarge string

func integer[T int | uint64](lo, hi int64, field func(*Config) *T) setter {
	return func(c *Config, v any) error {
		i, ok := v.(int64)
		if !ok || i < lo || i > hi {
			return fmt.Errorf("is %s, want an integer from %d to %d", show(v), lo, hi)
		}
		*field(c) = T(i)
		return nil
	}
}

// bytes takes a number of bytes, from lo to 2^46.
func bytes(lo int64, field func(*Config) *int) setter { return integer(lo, 1<<46, field) }

// share takes a number from 0 to 1.
func share(field func(*Config) *float64) setter {
	return func(c *Config, v any) error {
		f, ok := v.(float64)
		if i, isInt := v.(int64); isInt {
			f, ok = float64(i), true
		}
		if !ok || !(f >= 0 && f <= 1) {
			return fmt.Errorf("is %s, want a number from 0 to 1", show(v))
		}
		*field(c) = f
		return nil
	}
}

// positive takes a number that is still finite and above 0 as a float32.
func positive(field func(*Config) *float32) setter {
	return func(c *Config, v any) error {
		f, ok := v.(float64)
		if i, isInt := v.(int64); isInt {
			f, ok = float64(i), true
		}
		x := float32(f)
		if !ok || !(x > 0 && x <= math.MaxFloat32) { // not NaN either
			return fmt.Errorf("is %s, want a positive number", show(v))
		}
		*field(c) = x
		return nil
	}
}

func boolean(field func(*Config) *bool) setter {
	return func(c *Config, v any) error {
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("is %s, want true or false", show(v))
		}
		*field(c) = b
		return nil
	}
}

func text(field func(*Config) *string) setter {
	return func(c *Config, v any) error {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("is %s, want a string in quotes", show(v))
		}
		*field(c) = s
		return nil
	}
}

// traceFile takes a path whose extension says what to write, or nothing.
func traceFile(field func(*Config) *string) setter {
	return func(c *Config, v any) error {
		s, ok := v.(string)
		if ext := filepath.Ext(s); !ok || s != "" && ext != ".csv" && ext != ".json" {
			return fmt.Errorf("is %s, want a file that ends in .csv or .json", show(v))
		}
		*field(c) = s
		return nil
	}
}

func oneOf(field func(*Config) *string, valid ...string) setter {
	return func(c *Config, v any) error {
		s, ok := v.(string)
		if !ok || !slices.Contains(valid, s) {
			return fmt.Errorf(`is %s, want "%s"`, show(v), strings.Join(valid, `" or "`))
		}
		*field(c) = s
		return nil
	}
}

// show describes a value in an error, on one line.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case tooLarge:
		return fmt.Sprintf("%s, beyond TOML's range", string(v))
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

// distance is the least number of bytes to insert, delete or replace that
// makes b of a.
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
