package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
)

// completers ask a shell what it offers after each argument: bash and fish by a function, zsh by a
// key that is pressed on a terminal, where compadd prints what it would add. A line "---" ends each
// answer.
var completers = map[string]string{
	"bash": `source "$SCRIPT"
compopt() { :; }
for COMP_LINE; do
	COMP_POINT=${#COMP_LINE}
	_train
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

// TestCompletion completes lines in each shell that is installed.
func TestCompletion(t *testing.T) {
	cases := []struct{ line, want, not string }{
		{"train -co", "-completion", "-check"},
		{"train -co", "-compare", "-set"},
		{"train -set train.n", "train.num_epochs=", "train.bsz="},
		{"train -set train.n", "train.nvtx=", "model.num_layers="},
		{"train -set train.executor=", "graph", "train.bsz="},
		{"train -set train.fuse=f", "false", "true"},
		{"train -set allocator.strategy=b", "bestfit", "tlsf"},
		{"train -compare=c", "cuda", "malloc"},
		{"train -compare=custom:b", "bestfit", "tlsf"},
		{"train -compare=custom:b", "buddy", "slab"},
		{"train -completion ", "fish", "small.toml"},
		{"train -export l", "logs", "small.toml"},
		{"train s", "small.toml", "x.png"},
		{"train -predict ", "x.png", "-set"},
	}
	dir := t.TempDir()
	for _, name := range []string{"small.toml", "x.png"} {
		traintest.Write(t, filepath.Join(dir, name), "")
	}
	traintest.OK(t, os.Mkdir(filepath.Join(dir, "logs"), 0o777))
	for shell, program := range completers {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skip(err)
			}
			home := t.TempDir()
			path := filepath.Join(home, "completion")
			traintest.Write(t, path, completion(shell))
			args := []string{"-c", program}
			if shell != "fish" {
				args = append(args, shell)
			}
			for _, c := range cases {
				args = append(args, c.line)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, shell, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "SCRIPT="+path, "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
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
				if !has(c.want) || has(c.not) {
					t.Errorf("%q offers %q, want %s and not %s", c.line, words, c.want, c.not)
				}
			}
		})
	}
}
