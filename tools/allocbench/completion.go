package main

import (
	"strings"

	"mlpool/internal/completion"
)

// script returns a script that completes command lines of allocbench in a shell.
func script(shell string) string {
	return completion.Script(shell, completion.Program{Name: "allocbench", Flags: new(options).define(), Values: values})
}

// values says what the value of a flag can be. Names of allocators with a space, which a shell would need in quotes, are not
// offered.
func values(flag, name string) (v completion.Values) {
	switch {
	case flag == "scenario":
		v.Words = []string{replayName, allReduceName}
		for _, s := range scenarios() {
			v.Words = append(v.Words, s.name)
		}
	case flag == "allocator":
		for _, c := range contenders() {
			if !strings.Contains(c.name, " ") {
				v.Words = append(v.Words, c.name)
			}
		}
	case name == "dir":
		v.Path = completion.Folder
	case name != "file":
		v.Path = completion.NoPath
	}
	return v
}
