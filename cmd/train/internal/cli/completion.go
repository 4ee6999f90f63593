package cli

import (
	"flag"
	"fmt"
	"strings"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/configs"
)

// shells are those with completion.
var shells = []string{"bash", "zsh", "fish"}

// completion returns a script that completes command lines of train in a shell. It is generated
// from the flags, the keys and the allocators.
func completion(shell string) string {
	flags, _ := new(Options).define()
	var known []completed
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		known = append(known, completed{f.Name, value, text, isSwitch(f)})
	})
	switch shell {
	case "bash":
		return bashCompletion(known)
	case "zsh":
		return zshCompletion(known)
	}
	return fishCompletion(known)
}

// completed is a flag as shells complete it.
type completed struct {
	name, value, text string // value is its name in the usage
	isSwitch          bool   // the value is optional and follows "="
}

// words returns the values of a flag that can be listed.
func (c completed) words() []string {
	switch c.value {
	case "KEY=VALUE":
		var words []string
		for _, key := range configs.Keys() {
			words = append(words, key+"=")
			for _, value := range configs.Values(key) {
				if value != "" {
					words = append(words, key+"="+value)
				}
			}
		}
		return words
	case "LIST":
		words := backend.AllKinds
		for _, s := range allocator.Strategies() {
			words = append(words[:len(words):len(words)], backend.CustomPool+":"+s)
		}
		return words
	case "SHELL":
		return shells
	case "PERCENT":
		return []string{"0.5%", "1%", "2%"}
	}
	return nil
}

// isFolder reports whether the value is a folder. Values without words are files otherwise.
func (c completed) isFolder() bool { return c.value == "DIR" || c.value == "RUN" }

// bashCompletion reads the line itself, since bash splits words at "=" and ":". Its answers replace
// only what follows the last of these.
func bashCompletion(flags []completed) string {
	var b strings.Builder
	b.WriteString(`# To complete train in bash: source <(train -completion bash)
_train() {
	local line=${COMP_LINE:0:COMP_POINT} word before
	word=${line##*[[:space:]]}
	before=${line%"$word"}
	before=${before%"${before##*[![:space:]]}"}
	case ${before##*[[:space:]]} in
`)
	var names, switches []string
	for _, f := range flags {
		names = append(names, "-"+f.name)
		switch words := strings.Join(f.words(), " "); {
		case f.isSwitch && words != "":
			switches = append(switches, fmt.Sprintf("\t-%s=*)\n\t\tcompopt -o nospace\n\t\tbefore=${word%%\"${word##*[=,]}\"}\n"+
				"\t\tmapfile -t COMPREPLY < <(compgen -P \"$before\" -W '%s' -- \"${word##*[=,]}\") ;;\n", f.name, words))
		case f.isSwitch:
		case words != "":
			fmt.Fprintf(&b, "\t-%s)\n", f.name)
			if strings.HasSuffix(words, "=") {
				b.WriteString("\t\tcompopt -o nospace\n")
			}
			fmt.Fprintf(&b, "\t\tmapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\") ;;\n", words)
		case f.isFolder():
			fmt.Fprintf(&b, "\t-%s)\n\t\tcompopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -d -- \"$word\") ;;\n", f.name)
		default:
			fmt.Fprintf(&b, "\t-%s)\n\t\tcompopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n", f.name)
		}
	}
	fmt.Fprintf(&b, "\t*) case $word in\n%s\t-*)\n\t\tmapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\") ;;\n", strings.Join(switches, ""), strings.Join(names, " "))
	b.WriteString(`	*)
		compopt -o filenames
		mapfile -t COMPREPLY < <(compgen -f -X '!*.toml' -- "$word"; compgen -d -- "$word") ;;
	esac ;;
	esac
	before=${word%"${word##*[=:]}"}
	COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -F _train train
`)
	return b.String()
}

func zshCompletion(flags []completed) string {
	var b strings.Builder
	b.WriteString("#compdef train\n# To complete train in zsh, after compinit: source <(train -completion zsh)\n_train() {\n\t_arguments \\\n")
	for _, f := range flags {
		words := strings.Join(f.words(), " ")
		text := strings.NewReplacer("[", "(", "]", ")", "'", "’").Replace(f.text)
		switch {
		case f.isSwitch && words != "":
			fmt.Fprintf(&b, "\t\t'-%s=-[%s]::%s:{compset -P \"*,\"; compadd -S \"\" - %s}' \\\n", f.name, text, f.value, strings.ReplaceAll(words, ":", `\:`))
		case f.isSwitch:
			fmt.Fprintf(&b, "\t\t'-%s[%s]' \\\n", f.name, text)
		case strings.HasSuffix(words, "="):
			fmt.Fprintf(&b, "\t\t'*-%s[%s]:%s:{compadd -S \"\" - %s}' \\\n", f.name, text, f.value, words)
		case words != "":
			fmt.Fprintf(&b, "\t\t'-%s[%s]:%s:(%s)' \\\n", f.name, text, f.value, words)
		case f.isFolder():
			fmt.Fprintf(&b, "\t\t'-%s[%s]:%s:_files -/' \\\n", f.name, text, f.value)
		default:
			fmt.Fprintf(&b, "\t\t'-%s[%s]:%s:_files' \\\n", f.name, text, f.value)
		}
	}
	b.WriteString("\t\t'*:config or run:_files -g \"*.toml(-.)\"'\n}\ncompdef _train train\n")
	return b.String()
}

func fishCompletion(flags []completed) string {
	var b strings.Builder
	b.WriteString("# To complete train in fish: train -completion fish | source\n" +
		"complete -c train -f -a '(__fish_complete_suffix .toml)'\n")
	for _, f := range flags {
		line := "complete -c train -o " + f.name
		switch words := strings.Join(f.words(), " "); {
		case f.isSwitch && words != "":
			fmt.Fprintf(&b, "complete -c train -n 'string match -q -- \"-%s=*\" (commandline -ct)' -a '-%[1]s=%s'\n", f.name, strings.Join(f.words(), " -"+f.name+"="))
		case f.isSwitch:
		case words != "":
			line += fmt.Sprintf(" -x -a '%s'", words)
		case f.isFolder():
			line += " -x -a '(__fish_complete_directories)'"
		default:
			line += " -r -F"
		}
		fmt.Fprintf(&b, "%s -d '%s'\n", line, strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(f.text))
	}
	return b.String()
}
