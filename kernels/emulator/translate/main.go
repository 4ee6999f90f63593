// Command translate turns CUDA sources into C++ for the emulator.
//
//	translate OUT ROOT FILE...
//
// Each FILE is written to the folder OUT, at its path below ROOT; x.cu becomes x.cu.cpp. A file that would stay the
// same is not touched. CUDA's extensions of C++ become calls that emulator.h declares:
//
//	kernel<<<grid, block, shared, stream>>>(…)    emulator::call({grid, …}, kernel)(…)
//	extern __shared__ __align__(16) T x[];        T *x = emulator::dynamic_shared<T>();
//	__shared__ T x[n];                            auto &x = emulator::static_shared<T[n]>(…);
//	asm("add.u32 %0, %1;" : "=r"(a) : "r"(b));    emulator::add_u32(a, b);
//
// The names of several instructions in one asm are joined, with the special register or number of an
// instruction after its name; directives and labels do not count. Macros may be parts of the text, which
// are left out, and operands: #define A "r"(a) becomes #define A (a).
package main

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: translate OUT ROOT FILE...")
		os.Exit(2)
	}
	for _, path := range os.Args[3:] {
		if err := translateFile(os.Args[1], os.Args[2], path); err != nil {
			fmt.Fprintf(os.Stderr, "translate: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func translateFile(out, root, path string) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := translate(string(source))
	if err != nil {
		return err
	}
	if filepath.Ext(name) == ".cu" {
		name += ".cpp"
	}
	name = filepath.Join(out, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(name); err == nil && string(old) == text {
		return nil
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

var (
	launch    = regexp.MustCompile(`(\w+)<<<(.*?)>>>\(`)
	dynamic   = regexp.MustCompile(`extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];`)
	static    = regexp.MustCompile(`\b__shared__ ([\w ]+) (\w+(?:\[\w+\])*(?:, \w+(?:\[\w+\])*)*);`)
	asmBegins = regexp.MustCompile(`\basm(?:\s+volatile)?\s*\(`)
	literals  = regexp.MustCompile(`"[^"]*"`)
	inName    = regexp.MustCompile(`^(?:%%(\w+)|(\d+)),?$`) // a special register, or a number

	// What stands before an operand's parenthesis, and that parenthesis.
	constraint = regexp.MustCompile(`^"[=+]?[a-z]+"\s*\(`)
	macro      = regexp.MustCompile(`(?m)^#define .*$`)
	inMacro    = regexp.MustCompile(`"[=+]?[a-z]+"(\()`)
)

func translate(s string) (string, error) {
	s = launch.ReplaceAllString(s, "emulator::call({$2}, $1)(")
	s = dynamic.ReplaceAllString(s, "$1 *$2 = emulator::dynamic_shared<$1>();")
	s = static.ReplaceAllStringFunc(s, func(declaration string) string {
		parts := static.FindStringSubmatch(declaration)
		var variables []string
		for variable := range strings.SplitSeq(parts[2], ", ") {
			x, _, _ := strings.Cut(variable, "[")
			variables = append(variables, fmt.Sprintf("auto &%s = emulator::static_shared<%s>([] { static char site; return &site; }());",
				x, parts[1]+variable[len(x):]))
		}
		return strings.Join(variables, " ")
	})
	s = macro.ReplaceAllStringFunc(s, func(line string) string { return inMacro.ReplaceAllString(line, "$1") })
	var out strings.Builder
	for {
		at := asmBegins.FindStringIndex(s)
		if at == nil {
			out.WriteString(s)
			return out.String(), nil
		}
		inside, err := parenthesized(s[at[1]-1:])
		if err != nil {
			return "", err
		}
		call, err := assembly(inside)
		if err != nil {
			return "", fmt.Errorf("asm(%s): %w", inside, err)
		}
		out.WriteString(s[:at[0]] + call)
		s = s[at[1]+len(inside)+1:]
	}
}

// parenthesized returns what stands between the parenthesis that s begins with and
// the one that closes it.
func parenthesized(s string) (string, error) {
	depth := 0
	for i, c := range unquoted(s) {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return s[1:i], nil
			}
		}
	}
	return "", errors.New("a parenthesis is not closed")
}

// split cuts s at a character, where that is in no parentheses and in no string.
func split(s string, at rune) (parts []string) {
	depth, from := 0, 0
	for i, c := range unquoted(s) {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == at && depth == 0:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}

// unquoted is the characters of s that are in no string, and where they are.
func unquoted(s string) iter.Seq2[int, rune] {
	return func(yield func(int, rune) bool) {
		quoted := false
		for i, c := range s {
			if c == '"' {
				quoted = !quoted
			} else if !quoted && !yield(i, c) {
				return
			}
		}
	}
}

// assembly translates the parentheses of an asm statement to a call. They have the instructions and,
// separated by colons, the outputs, the inputs and the clobbers.
func assembly(s string) (string, error) {
	sections := split(s, ':')
	text := literals.FindAllString(sections[0], -1)
	if !strings.HasPrefix(strings.TrimSpace(s), `"`) {
		return "", errors.New("does not begin with a string")
	}
	names := instructions(strings.NewReplacer(`"`, " ", `\n`, " ").Replace(strings.Join(text, "")))
	if len(names) == 0 {
		return "(void)0", nil
	}
	var operands []string
	for _, section := range sections[1:min(len(sections), 3)] {
		for _, operand := range split(section, ',') {
			operand = strings.TrimSpace(operand)
			if constraint := constraint.FindString(operand); constraint != "" {
				inside, err := parenthesized(operand[len(constraint)-1:])
				if err != nil {
					return "", err
				}
				operand = inside
			}
			if operand != "" {
				operands = append(operands, operand)
			}
		}
	}
	return fmt.Sprintf("emulator::%s(%s)", strings.Join(names, "_"), strings.Join(operands, ", ")), nil
}

// instructions returns the names in a text of assembly.
func instructions(text string) (names []string) {
	for instruction := range strings.SplitSeq(strings.Trim(text, "{} \t\n"), ";") {
		words := strings.Fields(instruction)
		for len(words) > 0 && (strings.HasPrefix(words[0], "@") || strings.HasSuffix(words[0], ":")) {
			words = words[1:]
		}
		if len(words) == 0 || strings.HasPrefix(words[0], ".") {
			continue
		}
		for i, word := range words {
			if i == 0 {
				names = append(names, strings.NewReplacer(".", "_", "::", "_").Replace(word))
			} else if found := inName.FindStringSubmatch(word); found != nil {
				names = append(names, found[1]+found[2])
			}
		}
	}
	return names
}
