// Package completion writes scripts that complete the command lines of a program in a shell.
package completion

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
)

// Shells are those with completion.
var Shells = []string{"bash", "zsh", "fish"}

// Define defines the flag -completion, which sets shell.
func Define(flags *flag.FlagSet, shell *string) {
	flags.Func("completion", "print a script that completes command lines in `SHELL`: bash, zsh or fish", func(name string) error {
		*shell = name
		if !slices.Contains(Shells, name) {
			return errors.New("want " + strings.Join(Shells, " or "))
		}
		return nil
	})
}

// A Program is what a script completes.
type Program struct {
	Name  string
	Flags *flag.FlagSet
	// Values says what the value of a flag can be, of a flag that has one. name is what its usage calls the value.
	Values func(flag, name string) Values
	// Suffix is that of the files that are arguments, such as ".toml", and Argument what they are. A program without
	// arguments has neither.
	Suffix, Argument string
}

// Values are what the value of a flag can be.
type Values struct {
	Words []string // these, if there are any, and otherwise
	Path  Path
	About func(word string) string // describes one of Words in a phrase; nil: nothing is said of them
}

// A Path is a kind of path that a value can be.
type Path int

const (
	File Path = iota
	Folder
	NoPath // a number, or a text
)

// completed is a flag as shells complete it.
type completed struct {
	name, value, text string // value is its name in the usage
	isSwitch          bool   // the value is optional and follows "="
	Values
}

// IsSwitch reports whether the value of a flag is optional.
func IsSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// Script returns the script for one of Shells.
func Script(shell string, p Program) string {
	var all []completed
	p.Flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		c := completed{name: f.Name, value: value, text: text, isSwitch: IsSwitch(f)}
		if f.Name == "completion" {
			c.Words = Shells
		} else if value != "" {
			c.Values = p.Values(f.Name, value)
		}
		all = append(all, c)
	})
	switch shell {
	case "bash":
		return p.bash(all)
	case "zsh":
		return p.zsh(all)
	}
	return p.fish(all)
}

// bash reads the line itself, since bash splits words at "=" and ":". Its answers replace
// only what follows the last of these.
func (p Program) bash(flags []completed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# To complete %[1]s in bash: source <(%[1]s -completion bash)\n_%[1]s() {", p.Name)
	b.WriteString(`
	local line=${COMP_LINE:0:COMP_POINT} word before
	word=${line##*[[:space:]]}
	before=${line%"$word"}
	before=${before%"${before##*[![:space:]]}"}
	case ${before##*[[:space:]]} in
`)
	var names, switches []string
	for _, f := range flags {
		names = append(names, "-"+f.name)
		switch words := strings.Join(f.Words, " "); {
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
		case f.Path == Folder:
			fmt.Fprintf(&b, "\t-%s)\n\t\tcompopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -d -- \"$word\") ;;\n", f.name)
		case f.Path == NoPath:
			fmt.Fprintf(&b, "\t-%s) ;;\n", f.name)
		default:
			fmt.Fprintf(&b, "\t-%s)\n\t\tcompopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n", f.name)
		}
	}
	fmt.Fprintf(&b, "\t*) case $word in\n%s\t-*)\n\t\tmapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\") ;;\n", strings.Join(switches, ""), strings.Join(names, " "))
	if p.Suffix != "" {
		fmt.Fprintf(&b, "\t*)\n\t\tcompopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -f -X '!*%s' -- \"$word\"; compgen -d -- \"$word\") ;;\n", p.Suffix)
	}
	b.WriteString(`	esac ;;
	esac
	before=${word%"${word##*[=:]}"}
	COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
`)
	fmt.Fprintf(&b, "complete -F _%[1]s %[1]s\n", p.Name)
	return b.String()
}

func (p Program) zsh(flags []completed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %[1]s\n# To complete %[1]s in zsh, after compinit: source <(%[1]s -completion zsh)\n_%[1]s() {\n\t_arguments", p.Name)
	for _, f := range flags {
		words := strings.Join(f.Words, " ")
		text := strings.NewReplacer("[", "(", "]", ")", "'", "’").Replace(f.text)
		switch {
		case f.isSwitch && words != "":
			fmt.Fprintf(&b, " \\\n\t\t'-%s=-[%s]::%s:{compset -P \"*,\"; compadd -S \"\" - %s}'", f.name, text, f.value, strings.ReplaceAll(words, ":", `\:`))
		case f.isSwitch:
			fmt.Fprintf(&b, " \\\n\t\t'-%s[%s]'", f.name, text)
		case strings.HasSuffix(words, "="):
			fmt.Fprintf(&b, " \\\n\t\t'*-%s[%s]:%s:{compadd -S \"\" - %s}'", f.name, text, f.value, words)
		case words != "":
			fmt.Fprintf(&b, " \\\n\t\t'-%s[%s]:%s:(%s)'", f.name, text, f.value, words)
		case f.Path == Folder:
			fmt.Fprintf(&b, " \\\n\t\t'-%s[%s]:%s:_files -/'", f.name, text, f.value)
		case f.Path == NoPath:
			fmt.Fprintf(&b, " \\\n\t\t'-%s[%s]:%s: '", f.name, text, f.value)
		default:
			fmt.Fprintf(&b, " \\\n\t\t'-%s[%s]:%s:_files'", f.name, text, f.value)
		}
	}
	if p.Suffix != "" {
		fmt.Fprintf(&b, " \\\n\t\t'*:%s:_files -g \"*%s(-.)\"'", p.Argument, p.Suffix)
	}
	fmt.Fprintf(&b, "\n}\ncompdef _%[1]s %[1]s\n", p.Name)
	return b.String()
}

// described returns the words of a flag and what each is, for fish, within single quotes. The text of a flag would
// stand behind each word without a tab.
func (f completed) described() string {
	var all []string
	for _, word := range f.Words {
		about := ""
		if f.About != nil {
			about = f.About(word)
		}
		if f.isSwitch {
			word = "-" + f.name + "=" + word
		}
		if word += `\t`; about != "" {
			word += `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`).Replace(about) + `"`
		}
		all = append(all, word)
	}
	return strings.NewReplacer(`\"`, `\\"`, `\$`, `\\$`, "'", `\'`).Replace(strings.Join(all, " "))
}

func (p Program) fish(flags []completed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# To complete %[1]s in fish: %[1]s -completion fish | source\ncomplete -c %[1]s -f", p.Name)
	if p.Suffix != "" {
		fmt.Fprintf(&b, " -a '(__fish_complete_suffix %s)'", p.Suffix)
	}
	b.WriteString("\n")
	for _, f := range flags {
		line := "complete -c " + p.Name + " -o " + f.name
		switch words := f.described(); {
		case f.isSwitch && words != "":
			fmt.Fprintf(&b, "complete -c %s -n 'string match -q -- \"-%s=*\" (commandline -ct)' -a '%s'\n", p.Name, f.name, words)
		case f.isSwitch:
		case words != "":
			line += fmt.Sprintf(" -x -a '%s'", words)
		case f.Path == Folder:
			line += " -x -a '(__fish_complete_directories)'"
		case f.Path == NoPath:
			line += " -x"
		default:
			line += " -r -F"
		}
		fmt.Fprintf(&b, "%s -d '%s'\n", line, strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(f.text))
	}
	return b.String()
}
