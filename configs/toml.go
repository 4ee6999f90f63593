package configs

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// TOML returns the text of a file that sets every key to its value. [Parse] makes the same
// Config of it.
func (c Config) TOML() []byte {
	var b strings.Builder
	last := ""
	for _, k := range keys {
		section, name, _ := strings.Cut(k.name, ".")
		if section != last {
			if last != "" {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "[%s]\n", section)
			last = section
		}
		// Numbers, strings and booleans can all be encoded, and a Builder never fails.
		_ = toml.NewEncoder(&b).Encode(map[string]any{name: k.get(&c)})
	}
	return []byte(b.String())
}
