package main

import (
	"iter"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport lists the packages of this module that each package may import, directly or through
// others. An internal package that is not listed may import only internal packages.
var mayImport = map[string][]string{
	"mlpool/allocator":                       {},
	"mlpool/allocator/observe":               {"mlpool/allocator"},
	"mlpool/allocator/allocatortest":         {"mlpool/allocator", "mlpool/allocator/allocatortest/fake"},
	"mlpool/allocator/allocatortest/fake":    {},
	"mlpool/allocator/allocatortest/hostile": {"mlpool/allocator", "mlpool/allocator/allocatortest", "mlpool/allocator/allocatortest/fake"},
	"mlpool/allocator/cudadriver":            {},
	"mlpool/configs":                         {"mlpool/allocator"},
	"mlpool/data":                            {},
	"mlpool/model":                           {},
	"mlpool/kernels":                         {},
	"mlpool/kernels/ref":                     {},
	"mlpool/kernels/collective":              {"mlpool/kernels/ref"},
	"mlpool/kernels/collective/gpu":          {"mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/nccl", "mlpool/kernels/ref"},
	"mlpool/kernels/nccl":                    {},
	"mlpool/kernels/kerneltest":              {"mlpool/allocator/cudadriver", "mlpool/kernels", "mlpool/kernels/ref"},
	"mlpool/kernels/emulator/translate":      {},
	"mlpool/kernels/device":                  {"mlpool/allocator", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/ref"},
	"mlpool/kernels/collective/launch":       {},
	"mlpool/cmd/libmlpool":                   {"mlpool/allocator", "mlpool/allocator/cudadriver", "mlpool/allocator/observe", "mlpool/configs"},
	"mlpool/cmd/train/internal/dataset":      {"mlpool/allocator", "mlpool/configs", "mlpool/data", "mlpool/model"},
	"mlpool/cmd/train/internal/ranks":        {"mlpool/allocator", "mlpool/configs", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/collective/gpu", "mlpool/kernels/collective/launch", "mlpool/kernels/nccl", "mlpool/kernels/ref"},
	"mlpool/cmd/train/internal/backend":      {"mlpool/allocator", "mlpool/allocator/cudadriver", "mlpool/configs", "mlpool/data", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/device", "mlpool/kernels/ref"},
	"mlpool/cmd/train/internal/recording":    {"mlpool/allocator", "mlpool/allocator/observe", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/device", "mlpool/kernels/ref"},
	"mlpool/cmd/train/internal/compare":      {"mlpool/allocator", "mlpool/configs"},
	"mlpool/cmd/train/internal/predict":      {"mlpool/allocator", "mlpool/configs", "mlpool/data", "mlpool/kernels/ref", "mlpool/model"},
	"mlpool/cmd/train/internal/run":          {"mlpool/allocator", "mlpool/allocator/observe", "mlpool/allocator/cudadriver", "mlpool/configs", "mlpool/data", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/collective/gpu", "mlpool/kernels/collective/launch", "mlpool/kernels/device", "mlpool/kernels/nccl", "mlpool/kernels/ref", "mlpool/model"},
	"mlpool/cmd/train/internal/cli":          {"mlpool/allocator", "mlpool/allocator/observe", "mlpool/allocator/cudadriver", "mlpool/configs", "mlpool/data", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/collective/gpu", "mlpool/kernels/collective/launch", "mlpool/kernels/device", "mlpool/kernels/nccl", "mlpool/kernels/ref", "mlpool/model"},
	"mlpool/cmd/train/internal/traintest":    {"mlpool/allocator", "mlpool/configs", "mlpool/data"},
	"mlpool/cmd/train": {"mlpool/allocator", "mlpool/allocator/observe", "mlpool/allocator/cudadriver", "mlpool/configs", "mlpool/data", "mlpool/kernels",
		"mlpool/kernels/collective", "mlpool/kernels/collective/gpu", "mlpool/kernels/collective/launch", "mlpool/kernels/device", "mlpool/kernels/nccl", "mlpool/kernels/ref", "mlpool/model", "mlpool/internal/plotstyle", "mlpool/internal/report"},
	"mlpool/internal/gap":           {"mlpool/allocator"},
	"mlpool/internal/program":       {"mlpool/kernels"},
	"mlpool/internal/report":        {"mlpool/allocator", "mlpool/internal/plotstyle"},
	"mlpool/tools":                  {},
	"mlpool/tools/plot":             {"mlpool/internal/plotstyle"},
	"mlpool/tools/figures":          {"mlpool/internal/plotstyle"},
	"mlpool/tools/allocbench":       {"mlpool/allocator", "mlpool/allocator/allocatortest/fake", "mlpool/allocator/cudadriver", "mlpool/kernels", "mlpool/kernels/collective", "mlpool/kernels/collective/launch", "mlpool/kernels/nccl", "mlpool/kernels/ref", "mlpool/tools/allocbench/peers", "mlpool/allocator/observe", "mlpool/internal/plotstyle", "mlpool/internal/report"},
	"mlpool/tools/allocbench/peers": {"mlpool/allocator"},
}

// TestArrows keeps packages apart: the allocator knows no CUDA, the kernels no allocator and no
// layers, the model no device. Go itself checks who imports internal packages.
func TestArrows(t *testing.T) {
	for line := range goList(t, all, "-f", `{{.ImportPath}} {{join .Deps " "}}`) {
		fields := strings.Fields(line)
		allowed, listed := mayImport[fields[0]]
		if !listed && !strings.Contains(fields[0], "/internal/") {
			t.Errorf("%s: say in mayImport what it may import", fields[0])
		}
		for _, dep := range fields[1:] {
			if strings.HasPrefix(dep, "mlpool/") && !strings.Contains(dep, "/internal/") && !slices.Contains(allowed, dep) {
				t.Errorf("%s must not import %s", fields[0], dep)
			}
		}
	}
}

// rooms are the packages of cmd/train/internal. Each may import those before it.
var rooms = []string{"exit", "terminal", "rundir", "checkpoint", "dataset", "ranks", "backend", "recording", "compare", "predict", "run", "cli"}

func TestRooms(t *testing.T) {
	for line := range goList(t, all, "-f", `{{.ImportPath}} {{join .Imports " "}}`) {
		fields := strings.Fields(line)
		name, inside := strings.CutPrefix(fields[0], "mlpool/cmd/train/internal/")
		if !inside || name == "traintest" {
			continue
		}
		place := slices.Index(rooms, name)
		if place < 0 {
			t.Errorf("%s has no place in rooms", name)
			continue
		}
		for _, dep := range fields[1:] {
			if other, inside := strings.CutPrefix(dep, "mlpool/cmd/train/internal/"); inside && !slices.Contains(rooms[:place], other) {
				t.Errorf("%s must not import %s", name, other)
			}
		}
	}
}

// TestOnlyCUDAUsesCgo allows cgo for the kernels, the driver and the C library, with CUDA and without.
func TestOnlyCUDAUsesCgo(t *testing.T) {
	for tags, allowed := range map[string][]string{
		"":     {"mlpool/allocator/cudadriver", "mlpool/cmd/libmlpool", "mlpool/kernels/nccl"},
		"cuda": {"mlpool/allocator/cudadriver", "mlpool/cmd/libmlpool", "mlpool/kernels", "mlpool/kernels/nccl"},
	} {
		for line := range goList(t, all, "-tags", tags, "-f", `{{.ImportPath}} {{len .CgoFiles}}`) {
			if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); n != "0" && !slices.Contains(allowed, name) {
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
		"mlpool/cmd/train":        {"text/template", "net/rpc", "google.golang.org/protobuf/proto"},
		"mlpool/tools/allocbench": {"text/template", "net/rpc"},
	} {
		for dep := range goList(t, program, "-deps") {
			if dep = strings.TrimSpace(dep); slices.Contains(without, dep) {
				t.Errorf("%s must not import %s", program, dep)
			}
		}
	}
}

const all = "mlpool/..."

// goList returns the lines of go list for some packages.
func goList(t *testing.T, packages string, args ...string) iter.Seq[string] {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err) // a test binary that was carried to another machine
	}
	out, err := exec.Command("go", append(append([]string{"list"}, args...), packages)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Lines(string(out))
}
