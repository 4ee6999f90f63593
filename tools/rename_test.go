//go:build linux && cgo && !cuda && !race

package tools

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRenameModule renames a copy of this module, resolves all of its imports, and builds a program of another module
// that imports it. The packages themselves are the same but for their paths, so it compiles no more of them. It is slow,
// and does not depend on tags: one configuration runs it.
func TestRenameModule(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	const path = "example.com/some-one/mlpool"
	root := t.TempDir()
	renamed, other := filepath.Join(root, "renamed"), filepath.Join(root, "other")
	list, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "..").Output()
	if err != nil {
		t.Skip("no clone: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		to := filepath.Join(renamed, "tools", name)
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, not yet from the index
		}
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o777), os.WriteFile(to, text, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run(renamed, "tools/rename_module.sh", path)
	if got := run(renamed, "go", "list", "-m"); got != path {
		t.Errorf("module %s, want %s", got, path)
	}
	if out := run(renamed, "gofmt", "-l", "."); out != "" {
		t.Errorf("run gofmt on %s", out)
	}
	for _, dep := range strings.Fields(run(renamed, "go", "list", "-deps", "-test", "./...")) {
		if strings.HasPrefix(dep, "mlpool/") {
			t.Errorf("%s is still imported", dep)
		}
	}

	_, requires, _ := strings.Cut(read(t, filepath.Join(renamed, "go.mod")), "\n")
	for name, text := range map[string]string{
		"go.mod": "module other\n" + requires + "\nrequire " + path + " v0.0.0\n\nreplace " + path + " => ../renamed\n",
		"go.sum": read(t, filepath.Join(renamed, "go.sum")) + "\n",
		"main.go": `package main

import (
	"fmt"

	"` + path + `/allocator"
	"` + path + `/allocator/allocatortest"
)

func main() {
	pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
	if err != nil {
		panic(err)
	}
	b, err := pool.Alloc(5<<20, 1, "")
	fmt.Println(b.Size >= 5<<20, err)
}
`,
	} {
		if err := errors.Join(os.MkdirAll(other, 0o777), os.WriteFile(filepath.Join(other, name), []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(other, "go", "run", "."); got != "true <nil>" {
		t.Errorf("the other module prints %s", got)
	}
}
