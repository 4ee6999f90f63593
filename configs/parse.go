package configs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// Parse reads text over the defaults, and then applies settings such as "train.bsz=128".
// The value of a setting is TOML; a string needs no quotes. Every error is one line. It
// starts with name, the line's number and, if text is TOML, the key; or with -set and the
// key. Several errors are returned as [Errors].
func Parse(name string, text []byte, settings ...string) (Config, error) {
	c, errs := parseFile(name, text)
	for _, s := range settings {
		if err := c.apply(s); err != nil {
			errs = append(errs, err)
		}
	}
	if errs == nil {
		errs = c.check()
	}
	switch len(errs) {
	case 0:
		return c, nil
	case 1:
		return Config{}, errs[0]
	}
	return Config{}, errs
}

// Errors lists all errors of a config, in the order of its text.
type Errors []error

func (e Errors) Error() string   { return errors.Join(e...).Error() }
func (e Errors) Unwrap() []error { return e }

// mostErrors of a text are listed, since to find the line of one takes as long as to decode the text.
const mostErrors = 20

func parseFile(name string, text []byte) (c Config, errs Errors) {
	c = Default()
	c.name, c.places = name, map[string]string{}
	fail := func(line int, key string, err error) {
		if key != "" {
			err = fmt.Errorf("%s: %w", short(key), err)
		}
		errs = append(errs, fmt.Errorf("%s:%d: %w", name, line, err))
	}
	var values map[string]any
	if _, err := toml.Decode(string(text), &values); err != nil {
		var at toml.ParseError
		if errors.As(err, &at) {
			fail(lineOf(at, string(text)), "", syntax(at))
			return c, errs
		}
		return c, Errors{fmt.Errorf("%s: %w", name, err)}
	}
	var places map[string]toml.Primitive
	md, err := toml.Decode(string(text), &places)
	if err != nil {
		return c, Errors{fmt.Errorf("%s: %w", name, err)}
	}
	failed := map[string]bool{}       // keys, and sections that have no keys
	for _, whole := range md.Keys() { // in the order of the text
		path := whole[:min(len(whole), 2)] // deeper names are part of the key's value
		section, isTable := values[path[0]].(map[string]any)
		if failed[path[0]] || failed[path.String()] {
			continue
		}
		if len(errs) == mostErrors {
			return c, append(errs, fmt.Errorf("%s: there may be more errors: is it a config?", name))
		}
		at := line(&md, places, whole)
		switch i := index(path.String()); {
		case !isSection(path[0]):
			fail(at, path.String(), unknown(path))
			failed[path[0]] = true
		case !isTable:
			fail(at, path.String(), fmt.Errorf("is %s, want a section", show(values[path[0]])))
			failed[path[0]] = true
		case len(path) == 1:
		case i < 0:
			fail(at, path.String(), unknown(path))
			failed[path.String()] = true
		default:
			if err := keys[i].set(&c, section[path[1]]); err != nil {
				fail(at, path.String(), err)
				failed[path.String()] = true
			}
			c.places[keys[i].name] = fmt.Sprintf("%s:%d: %s", name, at, keys[i].name)
		}
	}
	for _, path := range md.Keys() {
		// The decoder accepts and ignores a key `train = ...` that follows `train.bsz`.
		if errs == nil && len(path) == 1 && md.Type(path[0]) != "Hash" {
			fail(line(&md, places, path), path.String(), errors.New("has already been defined as a section"))
		}
	}
	return c, errs
}

// lineOf returns the number of the line of a syntax error. For a line that ends too early
// the decoder may count its line break as well.
func lineOf(e toml.ParseError, text string) int {
	end := min(e.Position.Start+e.Position.Len, len(text))
	before, cut := strings.CutSuffix(text[:end], "\n")
	if n := 1 + strings.Count(before, "\n"); cut && e.Position.Line == n+1 {
		return n
	}
	return e.Position.Line
}

// syntax returns the error of a text that is not TOML. The decoder also fails on a number
// that no int64 or float64 holds: syntax returns the key's own error for it.
func syntax(e toml.ParseError) error {
	err := errors.New(printable(e.Message))
	number, _, isNumber := strings.Cut(e.Message, " is out of range for ")
	if !isNumber || e.LastKey == "" {
		return err
	}
	if i := index(e.LastKey); i >= 0 {
		err = keys[i].set(new(Config), tooLarge(number))
	}
	return fmt.Errorf("%s: %w", printable(e.LastKey), err)
}

// printable escapes what would break the line or not show, and shortens s.
func printable(s string) string {
	var b strings.Builder
	for _, r := range short(s) {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// short returns as much of s as an error quotes, its begin and its end.
func short(s string) string {
	const begin, end = 80, 40
	if r := []rune(s); len(r) > begin+end {
		return string(r[:begin]) + "…" + string(r[len(r)-end:])
	}
	return s
}

// line returns the number of the line where the value of a key begins. The decoder tells
// it only in the error of an Unmarshaler.
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

// isSection reports whether a section has keys.
func isSection(name string) bool { return len(KeysOf(name)) > 0 }

// synonyms are other programs' words for keys.
var synonyms = map[string]string{
	"lr": "train.learning_rate", "rate": "train.learning_rate", "step_size": "train.learning_rate",
	"epochs": "train.num_epochs", "epoch": "train.num_epochs", "max_epochs": "train.num_epochs",
	"batch": "train.bsz", "batch_size": "train.bsz", "batchsize": "train.bsz", "minibatch": "train.bsz",
	"hidden": "model.feat_dim", "hidden_size": "model.feat_dim", "hidden_dim": "model.feat_dim",
	"width": "model.feat_dim", "units": "model.feat_dim",
	"layers": "model.num_layers", "hidden_layers": "model.num_layers", "depth": "model.num_layers",
	"random_seed": "train.seed", "dtype": "train.precision",
}

// unknown reports a key or a section that does not exist. It suggests the key of that
// meaning, or the nearest one, or else lists all keys of the section.
func unknown(path toml.Key) error {
	word := strings.ToLower(path[len(path)-1])
	if known, ok := synonyms[word]; ok {
		return fmt.Errorf("unknown key, did you mean %s?", known)
	}
	var valid, names, meant []string // a name near names[i] means meant[i]
	for _, k := range keys {
		section, name, _ := strings.Cut(k.name, ".")
		if section == path[0] {
			valid = append(valid, name)
		}
		if len(path) == 1 {
			names, meant = append(names, section), append(meant, section)
		}
		names, meant = append(names, name), append(meant, k.name)
	}
	near := Nearest(word, names)
	switch {
	case near >= 0:
		return fmt.Errorf("unknown key, did you mean %s?", meant[near])
	case len(valid) > 0:
		return fmt.Errorf("unknown key, [%s] has %s", path[0], strings.Join(valid, ", "))
	}
	return errors.New("unknown section")
}
