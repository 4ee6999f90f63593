package main

import (
	"strings"

	"mlpool/internal/completion"
	"mlpool/tools/allocbench/internal/allreduce"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
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
		v.Words = []string{replay.Name, allreduce.Name}
		for _, s := range bench.Scenarios() {
			v.Words = append(v.Words, s.Name)
		}
	case flag == "allocator":
		for _, c := range bench.Contenders() {
			if !strings.Contains(c.Name, " ") {
				v.Words = append(v.Words, c.Name)
			}
		}
	case name == "dir":
		v.Path = completion.Folder
	case name != "file":
		v.Path = completion.NoPath
	}
	return v
}
