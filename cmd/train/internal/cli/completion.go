package cli

import (
	"fmt"
	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/configs"
	"mlpool/internal/completion"
	"strings"
)

// script returns a script that completes command lines of train in a shell. It is generated from the flags, the
// keys and the allocators.
func script(shell string) string {
	flags, _ := new(Options).define()
	return completion.Script(shell, completion.Program{Name: "train", Flags: flags, Values: values, Suffix: ".toml", Argument: "config or run"})
}

// values says what the value of a flag can be, by its name in the usage.
func values(_, name string) (v completion.Values) {
	switch name {
	case "KEY=VALUE":
		for _, key := range configs.Keys() {
			v.Words = append(v.Words, key+"=")
			for _, value := range configs.Values(key) {
				if value != "" {
					v.Words = append(v.Words, key+"="+value)
				}
			}
		}
		v.About = aboutSetting
	case "LIST":
		v.Words = append(v.Words, backend.AllKinds...)
		for _, s := range allocator.Strategies() {
			v.Words = append(v.Words, backend.CustomPool+":"+s)
		}
		v.About = func(word string) string {
			if _, strategy, found := strings.Cut(word, ":"); found {
				return allocator.DescribeStrategy(strategy)
			}
			return backend.AboutKinds[word]
		}
	case "PERCENT":
		v.Words = []string{"0.5%", "1%", "2%"}
	case "DIR", "RUN":
		v.Path = completion.Folder
	}
	return v
}

// aboutSetting says what a key can be, of KEY=, or that KEY=VALUE is the default.
func aboutSetting(word string) string {
	key, value, _ := strings.Cut(word, "=")
	usual, want := fmt.Sprint(configs.Default().Value(key)), strings.Replace(configs.Want(key), "a string in quotes", "any text", 1)
	switch {
	case value == usual && value != "":
		return "the default"
	case value != "":
		return ""
	case usual == "":
		return want
	}
	return want + "; " + usual + " by default"
}
