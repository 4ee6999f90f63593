package cli

import (
	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/configs"
	"mlpool/internal/completion"
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
	case "LIST":
		v.Words = append(v.Words, backend.AllKinds...)
		for _, s := range allocator.Strategies() {
			v.Words = append(v.Words, backend.CustomPool+":"+s)
		}
	case "PERCENT":
		v.Words = []string{"0.5%", "1%", "2%"}
	case "DIR", "RUN":
		v.Path = completion.Folder
	}
	return v
}
