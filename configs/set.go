package configs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// CheckSetting returns the error that [Parse] would return for a setting over any text.
func CheckSetting(setting string) error {
	c := Default()
	return c.apply(setting)
}

// apply applies a setting, KEY=VALUE.
func (c *Config) apply(setting string) error {
	name, value, found := strings.Cut(setting, "=")
	name = strings.TrimSpace(name)
	if !found || name == "" {
		return fmt.Errorf("-set %s: want KEY=VALUE, as in -set train.bsz=128", printable(setting))
	}
	if err := c.Set(name, value); err != nil {
		return fmt.Errorf("-set %w", err)
	}
	c.places[name] = "-set " + name
	return nil
}

// Set sets one of [Keys], such as "allocator.slack", from text as flag -set does. The value is TOML; a
// string needs no quotes. The error is one line that begins with the name, and nothing has changed then.
// Set does not compare the value with those of other keys.
func (c *Config) Set(name, value string) error {
	i := index(name)
	if i < 0 {
		path := toml.Key(strings.SplitN(name, ".", 2))
		if isSection(name) {
			path = toml.Key{name, ""} // so that the error lists its keys
		}
		return fmt.Errorf("%s: %w", printable(name), unknown(path))
	}
	v, err := settingValue(value)
	if err == nil {
		err = keys[i].set(c, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.places = maps.Clone(c.places) // which copies of c share
	if c.places == nil {
		c.places = map[string]string{}
	}
	c.places[name] = name
	return nil
}

// barePoint matches a number with no digit before or after its point, which is not TOML.
var barePoint = regexp.MustCompile(`^[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?$`)

// settingValue reads TOML. Other text is a string, unless it looks like a broken number,
// string, array or table.
func settingValue(text string) (any, error) {
	text = strings.TrimSpace(text)
	var values map[string]any
	_, err := toml.Decode("value = "+text, &values)
	if err == nil && len(values) == 1 { // a line break in text could begin another key
		return values["value"], nil
	}
	if err == nil {
		return nil, errors.New("has more than one value")
	}
	message := err.Error()
	if at := (toml.ParseError{}); errors.As(err, &at) {
		message = at.Message // without the position, which is in a text that the user did not write
	}
	if number, _, isNumber := strings.Cut(message, " is out of range for "); isNumber {
		return tooLarge(number), nil
	}
	if barePoint.MatchString(text) {
		return nil, fmt.Errorf("is %s: TOML wants digits on both sides of the point, as in 0.5", short(text))
	}
	if !utf8.ValidString(text) {
		return nil, errors.New("is not UTF-8")
	}
	if text != "" && strings.ContainsAny(text[:1], `"'[{`) {
		return nil, fmt.Errorf("is not TOML: %s", printable(message))
	}
	return text, nil
}
