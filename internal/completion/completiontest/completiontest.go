// Package completiontest tries scripts of package completion in real shells.
package completiontest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/internal/completion"
)

// completers ask a shell what it offers after each argument: bash and fish by a function, zsh by a
// key that is pressed on a terminal, where compadd prints what it would add. A line "---" ends each
// answer.
var completers = map[string]string{
	"bash": `source "$SCRIPT"
compopt() { :; }
for COMP_LINE; do
	COMP_POINT=${#COMP_LINE}
	_$PROGRAM
	printf -- '%s\n' "${COMPREPLY[@]}" ---
done`,
	"fish": `source $SCRIPT
for line in $argv
	complete -C $line
	echo ---
end`,
	"zsh": `zmodload zsh/zpty
zpty shell 'TERM=dumb PS1="> " zsh -f -i'
zpty -w shell 'autoload -U compinit; compinit -u -D; source "$SCRIPT"'
zpty -w shell 'compadd() { case " $*" in *" -"[ADO]" "*) builtin compadd "$@" ;; *) local -a hits; builtin compadd -A hits "$@"; print -rl -- $hits ;; esac }'
zpty -w shell 'offer() { print be""gin; _main_complete; print e""nd; }; zle -C offer complete-word offer; bindkey "^I" offer; print rea""dy'
zpty -r shell reply $'*\nready*> *'
for line; do
	zpty -w -n shell $'\C-u'"$line"$'\t'
	zpty -r shell reply $'*begin*end*'
	print -r - "${${reply#*begin}%end*}"
	print -- ---
done`,
}

// A Case is a line, an ending of a word that a shell must offer at its end, and one that it must not.
type Case = struct{ Line, Want, Not string }

// Run completes lines of a program in the folder dir, in each shell that is installed.
func Run(t *testing.T, program string, script func(shell string) string, dir string, cases []Case) {
	for _, shell := range completion.Shells {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skip(err)
			}
			home := t.TempDir()
			path := filepath.Join(home, "completion")
			if err := os.WriteFile(path, []byte(script(shell)), 0o666); err != nil {
				t.Fatal(err)
			}
			args := []string{"-c", completers[shell]}
			if shell != "fish" {
				args = append(args, shell)
			}
			for _, c := range cases {
				args = append(args, c.Line)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, shell, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "SCRIPT="+path, "PROGRAM="+program, "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
			out, err := cmd.CombinedOutput()
			answers := strings.Split(string(out), "\n---")
			if err != nil || len(answers) != len(cases)+1 {
				t.Fatalf("%v: %s", err, out)
			}
			for i, c := range cases {
				words := strings.FieldsFunc(answers[i], func(r rune) bool { return strings.ContainsRune(" \t\r\n/", r) })
				has := func(word string) bool {
					return slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(w, word) })
				}
				if !has(c.Want) || has(c.Not) {
					t.Errorf("%q offers %q, want %s and not %s", c.Line, words, c.Want, c.Not)
				}
			}
		})
	}
}
