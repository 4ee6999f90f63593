package configs

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/must"
)

// TestReference compares the tables of README.md, whose rows begin with a key and
// its default, with what there is.
func TestReference(t *testing.T) {
	page, err := os.ReadFile("README.md")
	must.OK(t, err)
	var want, got []string
	for _, k := range keys {
		want = append(want, k.name)
	}
	heading, row := regexp.MustCompile("^## `\\[(.*)\\]`$"), regexp.MustCompile("^\\| `(\\w+)` \\| `(.*?)` \\|")
	var section string
	var toml strings.Builder
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if m := heading.FindStringSubmatch(line); m != nil {
			section = m[1]
			toml.WriteString("[" + section + "]\n")
		} else if m := row.FindStringSubmatch(line); m != nil {
			got = append(got, section+"."+m[1])
			toml.WriteString(m[1] + " = " + m[2] + "\n")
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("README.md has the keys\n%q, want\n%q", got, want)
	}
	c, err := Parse("README.md", []byte(toml.String()))
	must.OK(t, err)
	c.name, c.places = "", nil
	if d := Default(); !reflect.DeepEqual(c, d) {
		t.Errorf("README.md's defaults make\n%+v, want\n%+v", c, d)
	}
}
