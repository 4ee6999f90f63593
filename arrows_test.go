// Package mlpool_test tests which package imports which, in the whole module.
package mlpool_test

import (
	"iter"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/must"
)

// A row of the table of packages in ARCHITECTURE.md. A package that is in no row belongs to that of a folder above it.
type row struct {
	packages  []string
	does      string
	mayImport []string
}

var quoted = regexp.MustCompile("`([^`]+)`")

// quotes returns what stands between backquotes.
func quotes(cell string) (found []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		found = append(found, m[1])
	}
	return found
}

// readTable returns the rows by package.
func readTable(t *testing.T) map[string]*row {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	must.OK(t, err)
	_, table, _ := strings.Cut(string(text), "| package | what it does | may import |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows, below := map[string]*row{}, []string(nil)
	for _, line := range slices.Backward(strings.Split(table, "\n")) {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 {
			t.Fatalf("ARCHITECTURE.md: want three cells: %s", line)
		}
		r := &row{quotes(cells[0]), cells[1], quotes(cells[2])}
		if cells[2] == "all below" {
			r.mayImport = slices.Clone(below)
		}
		for _, name := range r.packages {
			rows[name] = r
		}
		below = append(below, r.packages...)
	}
	for name, r := range rows {
		for _, path := range append(r.mayImport, name) {
			if _, err := os.Stat(path); err != nil || rows[path] == nil {
				t.Errorf("ARCHITECTURE.md: row %s: no package %s", name, path)
			}
		}
	}
	return rows
}

// rowOf returns the row of a package of this module, or nil.
func rowOf(rows map[string]*row, name string) *row {
	for ; name != "."; name = path.Dir(name) {
		if r := rows[name]; r != nil {
			return r
		}
	}
	return nil
}

// TestArrows wants packages to import only what the table of ARCHITECTURE.md allows, and packages of cmd/train/internal
// only those that the table names before them.
func TestArrows(t *testing.T) {
	rows := readTable(t)
	for line := range goList(t, all, "-f", `{{.ImportPath}} {{join .Imports " "}}`) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		from := rowOf(rows, name)
		if from == nil && name != strings.TrimSuffix(module, "/") {
			t.Errorf("ARCHITECTURE.md: no row for %s", name)
		}
		for _, dep := range fields[1:] {
			dep, inside := strings.CutPrefix(dep, module)
			if !inside || from == nil {
				continue
			}
			to := rowOf(rows, dep)
			if to == nil || to != from && !slices.ContainsFunc(to.packages, func(p string) bool { return slices.Contains(from.mayImport, p) }) {
				t.Errorf("%s must not import %s", name, dep)
			}
			const inner = "cmd/train/internal/"
			if order := quotes(from.does); strings.HasPrefix(name, inner) && strings.HasPrefix(dep, inner) &&
				slices.Index(order, path.Base(dep)) >= slices.Index(order, path.Base(name)) {
				t.Errorf("%s must not import %s: ARCHITECTURE.md does not name it before", name, dep)
			}
		}
	}
}

// TestOnlyCUDAUsesCgo allows cgo for the kernels, the driver and the C library, with CUDA and without.
func TestOnlyCUDAUsesCgo(t *testing.T) {
	for tags, allowed := range map[string][]string{
		"":     {"allocator/cudadriver", "cmd/libmlpool", "kernels/nccl"},
		"cuda": {"allocator/cudadriver", "cmd/libmlpool", "kernels", "kernels/nccl"},
	} {
		for line := range goList(t, all, "-tags", tags, "-f", `{{.ImportPath}} {{len .CgoFiles}}`) {
			if name, n, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), module), " "); n != "0" && !slices.Contains(allowed, name) {
				t.Errorf("%s has %s files that import \"C\" with tags %q", name, n, tags)
			}
		}
	}
}

// TestLinkedSize keeps packages out of programs of a release that would make them much larger. Programs that call
// reflect.Value.MethodByName with a name that is not constant, as templates do, keep all methods of all types, and so
// do those that link google.golang.org/protobuf with gorgonia.org/tensor.
func TestLinkedSize(t *testing.T) {
	for program, without := range map[string][]string{
		module + "cmd/train":        {"text/template", "net/rpc", "google.golang.org/protobuf/proto"},
		module + "tools/allocbench": {"text/template", "net/rpc"},
	} {
		for dep := range goList(t, program, "-deps") {
			if dep = strings.TrimSpace(dep); slices.Contains(without, dep) {
				t.Errorf("%s must not import %s", program, dep)
			}
		}
	}
}

// module is how import paths of this module begin.
const module = "mlpool/"

const all = module + "..."

// goList returns the lines of go list for some packages.
func goList(t *testing.T, packages string, args ...string) iter.Seq[string] {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err) // a test binary that was carried to another machine
	}
	out, err := exec.Command("go", append(append([]string{"list"}, args...), packages)...).Output()
	must.OK(t, err)
	return strings.Lines(string(out))
}
