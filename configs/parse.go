package configs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// Parse reads text over the defaults. Every error is one line that starts with
// name, the line's number and, unless it is the text that is no TOML, the key.
func Parse(name string, text []byte) (Config, error) {
	fail := func(line int, key string, err error) (Config, error) {
		if key != "" {
			err = fmt.Errorf("%s: %w", key, err)
		}
		return Config{}, fmt.Errorf("%s:%d: %w", name, line, err)
	}
	var values map[string]any
	if _, err := toml.Decode(string(text), &values); err != nil {
		var at toml.ParseError
		if !errors.As(err, &at) {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
		return fail(at.Position.Line, "", syntax(at))
	}
	var places map[string]toml.Primitive
	md, err := toml.Decode(string(text), &places)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	c := Default()
	c.name, c.lines = name, map[string]int{}
	for _, path := range md.Keys() { // in the order of the text
		at := line(&md, places, path)
		path = path[:min(len(path), 2)] // what is deeper is part of its value
		section, isTable := values[path[0]].(map[string]any)
		switch i := slices.IndexFunc(keys, func(k key) bool { return k.name == path.String() }); {
		case !isSection(path[0]):
			return fail(at, path.String(), unknown(path))
		case !isTable:
			return fail(at, path.String(), fmt.Errorf("is %s, want a section", show(values[path[0]])))
		case len(path) == 1:
		case i < 0:
			return fail(at, path.String(), unknown(path))
		default:
			if err := keys[i].set(&c, section[path[1]]); err != nil {
				return fail(at, path.String(), err)
			}
			c.lines[keys[i].name] = at
		}
	}
	return c, nil
}

// syntax returns the error of a text that is no TOML. A number that no int64 or
// float64 holds is one: it gets the error that its key has for what is out of range.
func syntax(e toml.ParseError) error {
	number, _, isNumber := strings.Cut(e.Message, " is out of range for ")
	if !isNumber || e.LastKey == "" {
		return errors.New(printable(e.Message))
	}
	err := errors.New(printable(e.Message))
	if i := slices.IndexFunc(keys, func(k key) bool { return k.name == e.LastKey }); i >= 0 {
		err = keys[i].set(new(Config), tooLarge(number))
	}
	return fmt.Errorf("%s: %w", printable(e.LastKey), err)
}

// printable escapes what would break the line or not show: the decoder quotes the
// text as it is.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// line returns the number of the line where the value of a key begins: the
// decoder tells it only in the error of an Unmarshaler.
func line(md *toml.MetaData, table map[string]toml.Primitive, path toml.Key) int {
	at := 0
	for _, part := range path {
		var e toml.ParseError
		if errors.As(md.PrimitiveDecode(table[part], refuser{}), &e) {
			at = max(at, e.Position.Line)
		}
		below := map[string]toml.Primitive{}
		if md.PrimitiveDecode(table[part], &below) != nil {
			break
		}
		table = below
	}
	return at
}

type refuser struct{}

func (refuser) UnmarshalTOML(any) error { return errors.New("refused") }

// isSection says whether any key is in the section of that name.
func isSection(name string) bool {
	return slices.ContainsFunc(keys, func(k key) bool { return strings.HasPrefix(k.name, name+".") })
}

// unknown returns the error of a key, or a section, that does not exist: with
// the nearest one that does, or else with all that could stand in its place.
func unknown(path toml.Key) error {
	var valid []string
	near, nearest := "", 3 // more than two typing errors apart is no likeness
	try := func(valid, part string) {
		if d := distance(strings.ToLower(path[len(path)-1]), part); d < nearest && d < len(part) {
			near, nearest = valid, d
		}
	}
	for _, k := range keys {
		section, name, _ := strings.Cut(k.name, ".")
		switch {
		case len(path) == 1 && !slices.Contains(valid, section):
			valid = append(valid, section)
			try(section, section)
		case len(path) == 2 && section == path[0]:
			valid = append(valid, name)
		}
		try(k.name, name)
	}
	switch {
	case near != "":
		return fmt.Errorf("unknown key, did you mean %s?", near)
	case len(path) == 2 && isSection(path[0]):
		return fmt.Errorf("unknown key, [%s] has %s", path[0], strings.Join(valid, ", "))
	}
	return errors.New("unknown section")
}
