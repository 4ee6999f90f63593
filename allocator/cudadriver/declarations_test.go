package cudadriver_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// structs are those of declarations.h, with their names in cuda.h and their fields.
var structs = []struct{ here, there, fields string }{
	{"cd_location", "CUmemLocation", "type id"},
	{"cd_allocation_prop", "CUmemAllocationProp", "type requestedHandleTypes location win32HandleMetaData allocFlags"},
	{"cd_access_desc", "CUmemAccessDesc", "location flags"},
	{"cd_pool_props", "CUmemPoolProps", "allocType handleTypes location win32SecurityAttributes"},
	{"cd_deviceptr", "CUdeviceptr", ""},
	{"cd_allocation", "CUmemGenericAllocationHandle", ""},
}

// TestDeclarations has a C compiler compare declarations.h with a toolkit's cuda.h.
func TestDeclarations(t *testing.T) {
	compile := func(source string) (string, error) {
		cmd := exec.Command("gcc", "-fsyntax-only", "-Wno-incompatible-pointer-types", "-Werror=int-conversion", "-I.", "-I/usr/local/cuda/include", "-x", "c", "-")
		cmd.Stdin = strings.NewReader(source)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := compile("#include <cuda.h>\n_Static_assert(CUDA_VERSION >= 11040, \"too old\");\n"); err != nil {
		t.Skipf("no gcc, or no cuda.h of CUDA 11.4 or newer: %v", err)
	}
	text, err := os.ReadFile("declarations.h")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintln(&b, "#include <cuda.h>\n#include \"declarations.h\"")
	same := func(a, b string) string { return fmt.Sprintf("_Static_assert(%s == %s, \"%s\");\n", a, b, b) }
	constants := regexp.MustCompile(`(?m)^  CD_(\w+) =`).FindAllSubmatch(text, -1)
	for _, c := range constants {
		name := "CU_" + string(c[1])
		if name == "CU_SUCCESS" || strings.HasPrefix(name, "CU_ERROR") {
			name = "CUDA_" + string(c[1])
		}
		b.WriteString(same("(int)CD_"+string(c[1]), "(int)"+name))
	}
	for _, s := range structs {
		b.WriteString(same(fmt.Sprintf("sizeof(%s)", s.here), fmt.Sprintf("sizeof(%s)", s.there)))
		for _, f := range strings.Fields(s.fields) {
			b.WriteString(same(fmt.Sprintf("offsetof(%s, %s)", s.here, f), fmt.Sprintf("offsetof(%s, %s)", s.there, f)))
		}
	}
	// A call with arguments of the types here: their number, and which are pointers.
	functions := regexp.MustCompile(`(?m)^  F\((\w+), (.*)\) *\\?$`).FindAllSubmatch(text, -1)
	for _, f := range functions {
		var names []string
		for p := range strings.SplitSeq(string(f[2]), ", ") {
			names = append(names, p[strings.LastIndexAny(p, " *")+1:])
		}
		if string(f[2]) == "void" {
			names = nil
		}
		fmt.Fprintf(&b, "int call_%s(%s) { return %s(%s); }\n", f[1], f[2], f[1], strings.Join(names, ", "))
	}
	if declared := strings.Count(string(text), "\n  F("); len(constants) < 19 || len(functions) != declared {
		t.Fatalf("%d constants and %d functions of %d are found", len(constants), len(functions), declared)
	}
	if out, err := compile(b.String()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
