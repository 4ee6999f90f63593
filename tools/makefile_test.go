//go:build linux

package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"mlpool/internal/must"
)

// kernelsOf returns a folder with kernels.mk, two sources, and a compiler that appends the
// objects it compiles to the file compiled. If the folder has a file "fail", the compiler
// writes half an object and fails.
func kernelsOf(t *testing.T) (dir, compiled string) {
	t.Helper()
	for _, tool := range []string{"make", "ar", "flock"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir = t.TempDir()
	compiled = filepath.Join(dir, "compiled")
	for name, text := range map[string]string{
		"Makefile":              "include kernels/kernels.mk\n",
		"kernels/kernels.mk":    read(t, "../kernels/kernels.mk"),
		"kernels/cuda/nn/a.cu":  "",
		"kernels/cuda/nn/b.cu":  "",
		"kernels/cuda/kernel.h": "",
		"nvcc": `#!/bin/sh
case "$*" in *--version* | *--help*) exit ;; esac
for object; do :; done
echo "$object" >>compiled
echo half >"$object"
[ ! -e fail ] || exit 1
sleep 0.2 # so that two that run side by side do
echo whole >"$object"
`,
	} {
		fake(t, dir, name, text)
	}
	return dir, compiled
}

// makeIn runs make in a folder, without the flags of a make that runs the tests.
func makeIn(dir string, args ...string) (out string, err error) {
	cmd := exec.Command("make", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "EMULATE=")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// makeKernels runs make kernels in a folder of kernelsOf.
func makeKernels(dir string) (out string, err error) {
	return makeIn(dir, "kernels", "NVCC=./nvcc", "CUDA_ARCH=sm_90")
}

// TestMakeKernelsTwice runs two makes at the same time, as `make -j2 train test` does: the
// second must wait for the first.
func TestMakeKernelsTwice(t *testing.T) {
	dir, compiled := kernelsOf(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if out, err := makeKernels(dir); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	both.Wait()
	if text, err := os.ReadFile(compiled); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("compiled, of two sources: %q, %v", text, err)
	}
}

// TestMakeKernelsFails has the compiler fail after half an object: the next make must not use it.
func TestMakeKernelsFails(t *testing.T) {
	dir, _ := kernelsOf(t)
	fail := filepath.Join(dir, "fail")
	must.OK(t, os.WriteFile(fail, nil, 0o666))
	if out, err := makeKernels(dir); err == nil {
		t.Errorf("make succeeds although the compiler fails: %s", out)
	}
	must.OK(t, os.Remove(fail))
	if out, err := makeKernels(dir); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	objects, err := filepath.Glob(filepath.Join(dir, "build/*/nn/*.o"))
	if err != nil || len(objects) != 2 {
		t.Fatalf("objects %q, %v", objects, err)
	}
	for _, object := range objects {
		if text, err := os.ReadFile(object); err != nil || string(text) != "whole\n" {
			t.Errorf("%s is %q, %v", object, text, err)
		}
	}
}

// TestMakeKernelsEmulated changes sources of the emulated kernels: only what depends on them is compiled again.
func TestMakeKernelsEmulated(t *testing.T) {
	dir, compiled := kernelsOf(t)
	const translate = "kernels/emulator/translate/main.go"
	fake(t, dir, "go.mod", "module m\n\ngo 1.26\n")
	fake(t, dir, translate, read(t, "../"+translate))
	must.OK(t, os.Rename(filepath.Join(dir, "nvcc"), filepath.Join(dir, "g++")))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		change, to string
		want       []string
	}{
		{"", "", []string{"a.o", "b.o"}},
		{"", "", nil},
		{"kernels/cuda/nn/a.cu", "int a;\n", []string{"a.o"}},
		{"kernels/cuda/nn/b.cu", "", nil}, // a new time alone
		{"kernels/cuda/kernel.h", "int h;\n", []string{"a.o", "b.o"}},
	} {
		must.OK(t, os.RemoveAll(compiled))
		if c.change != "" {
			fake(t, dir, c.change, c.to)
		}
		if out, err := makeIn(dir, "kernels", "EMULATE=1"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		text, _ := os.ReadFile(compiled) // there is none if nothing was compiled
		var got []string
		for object := range strings.FieldsSeq(string(text)) {
			got = append(got, filepath.Base(object))
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%q changed to %q: compiled %q, want %q", c.change, c.to, got, c.want)
		}
	}
}

// TestReleaseArchitectures wants code for every major architecture that nvcc knows, and PTX of 9.0 and the newest.
func TestReleaseArchitectures(t *testing.T) {
	for _, c := range []struct{ release, knows, code, ptx string }{
		{"11.8", "sm_60 sm_61 sm_70 sm_75 sm_80 sm_86 sm_90", "70 80 90", "90"},
		{"12.9", "sm_60 sm_70 sm_75 sm_80 sm_89 sm_90 sm_100 sm_101 sm_103 sm_120 sm_121", "70 80 90 100 120 90a", "120 90"},
		{"13.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_103 sm_110 sm_120 sm_121", "80 90 100 110 120 90a", "120 90"},
	} {
		dir := t.TempDir()
		fake(t, dir, "nvcc", "#!/bin/sh\ncase $1 in --list-gpu-code) printf '%s\\n' "+c.knows+" ;; --version) echo 'release "+c.release+", V1' ;; esac\n")
		out, err := makeIn("..", "-n", "-f", "kernels/kernels.mk", "NVCC="+dir+"/nvcc", "CUDA_ARCH=release", "kernels_build="+dir, dir+"/gemm/warpgroup/warpgroup.o")
		command := regexp.MustCompile(".*warpgroup.cu -o").FindString(out)
		var code, ptx []string
		for _, m := range regexp.MustCompile(`code=(sm|compute)_(\w+)`).FindAllStringSubmatch(command, -1) {
			if m[1] == "sm" {
				code = append(code, m[2])
			} else {
				ptx = append(ptx, m[2])
			}
		}
		if err != nil || strings.Join(code, " ") != c.code || strings.Join(ptx, " ") != c.ptx {
			t.Errorf("nvcc %s: code for %q, PTX of %q, %v, want %q and %q: %s", c.release, code, ptx, err, c.code, c.ptx, command)
		}
	}
}

// TestKernelsInAnyFolder compiles a source for a release in two folders, and wants the same bytes.
func TestKernelsInAnyFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("nvcc takes seconds")
	}
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		t.Skip(err)
	}
	var objects [2][]byte
	for i := range objects {
		dir := filepath.Join(t.TempDir(), strings.Repeat("longer", i))
		must.OK(t, os.CopyFS(filepath.Join(dir, "kernels/cuda"), os.DirFS("../kernels/cuda")))
		fake(t, dir, "kernels/kernels.mk", read(t, "../kernels/kernels.mk"))
		const object = "build/kernels-release/nn/gather.o"
		if out, err := makeIn(dir, "-f", "kernels/kernels.mk", "NVCC="+nvcc, "CUDA_ARCH=release", object); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if objects[i], err = os.ReadFile(filepath.Join(dir, object)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(objects[0], objects[1]) {
		t.Error("the folder is in the object: see cmp -l")
	}
}

// TestMakeClean wants everything removed that was built, but not an nvcc that was a download of 1 GB, nor the logs.
func TestMakeClean(t *testing.T) {
	dir, _ := kernelsOf(t)
	fake(t, dir, "Makefile", read(t, "../Makefile"))
	removed := []string{"build/train", "build/a b/c", "build/.hidden", "kernels/libkernels.a", "kernels/archive_cuda.go"}
	kept := []string{"build/cuda12/bin/nvcc", "logs/weights", "a", "b/c"}
	for _, name := range append(removed, kept...) {
		fake(t, dir, name, "")
	}
	out, err := makeIn(dir, "clean", "CUDA=0")
	if err != nil || !strings.Contains(out, "rm -r build/cuda12 removes it\n") {
		t.Errorf("%v: %s", err, out)
	}
	for _, name := range removed {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestMakeTrain runs make train on a machine with a GPU: it fetches nvcc if that is missing, and
// trains on the CPU if it cannot or may not.
func TestMakeTrain(t *testing.T) {
	if _, err := os.Stat("/usr/local/cuda/bin/nvcc"); err == nil {
		t.Skip("make finds nvcc outside of PATH")
	}
	const fetching, install = "fetching nvcc for this GPU", "install gcc, g++ and NVIDIA's CUDA toolkit"
	for _, c := range []struct {
		name, installs string
		args           []string
		says, trains   string
		without        string
	}{
		{"fetched", "0", nil, fetching, "cuda configs/mnist.toml", install},
		{"impossible", "1", nil, install, "cpu configs/mnist_cpu.toml", "cuda configs"},
		{"declined", "0", []string{"CUDA=0"}, "", "cpu configs/mnist_cpu.toml", fetching},
		{"another config", "1", []string{"CONFIG=a.toml"}, fetching, "cpu a.toml", "cuda configs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bare, _ := sandbox(t, "ar", "awk", "bash", "cat", "chmod", "cmp", "cp", "cut", "flock", "git", "grep", "make", "mkdir", "nproc",
				"printf", "realpath", "rm", "sed", "sh", "sha256sum", "sleep", "tail", "touch", "uname")
			bin := filepath.Join(bare, "bin")
			dir, _ := kernelsOf(t)
			fake(t, dir, "Makefile", read(t, "../Makefile"))
			fake(t, bin, "nvidia-smi", "#!/bin/sh\n[ \"$1\" != -L ] || echo 'GPU 0: H200'\n")
			fake(t, bin, "go", `#!/bin/sh
case "$*" in
*CGO_ENABLED) echo 1 ;;
build*) case "$*" in *"-tags cuda"*) on=cuda ;; *) on=cpu ;; esac
	printf '#!/bin/sh\necho trains: '$on' "$@"\n' >build/train
	chmod +x build/train ;;
esac
`)
			fake(t, dir, "tools/install_cuda.sh", `#!/bin/sh
[ `+c.installs+` = 0 ] && mkdir -p "$1/bin" && cp nvcc "$1/bin/nvcc"
`)
			must.OK(t, os.MkdirAll(filepath.Join(dir, "build"), 0o777))
			cmd := exec.Command(filepath.Join(bin, "make"), append([]string{"-C", dir, "train"}, c.args...)...)
			cmd.Env = []string{"PATH=" + bin}
			out, err := cmd.CombinedOutput()
			said := string(out)
			if err != nil || !strings.Contains(said, c.says) || !strings.Contains(said, "\ntrains: "+c.trains+"\n") || strings.Contains(said, "\n"+c.without) || strings.HasPrefix(said, c.without) {
				t.Errorf("%v: %s", err, said)
			}
		})
	}
}

// TestMakeDistWithoutNVCC wants one message of what is missing, before anything is downloaded.
func TestMakeDistWithoutNVCC(t *testing.T) {
	if _, err := os.Stat("/usr/local/cuda/bin/nvcc"); err == nil {
		t.Skip("make finds nvcc outside of PATH")
	}
	bare, _ := sandbox(t, "awk", "bash", "cat", "cut", "date", "dirname", "env", "grep", "make", "mkdir", "nproc", "realpath", "sed", "sh", "sha256sum", "uname")
	bin := filepath.Join(bare, "bin")
	dir, _ := kernelsOf(t)
	for _, name := range []string{"Makefile", "tools/debs.sh", "tools/release/dist.sh", "tools/release/release.sh"} {
		fake(t, dir, name, read(t, filepath.Join("..", name)))
	}
	fake(t, bin, "go", "#!/bin/sh\ncase $* in *GOARCH) echo amd64 ;; *) echo 1 ;; esac\n")
	fake(t, bin, "git", "#!/bin/sh\necho 1\n")
	fake(t, bin, "apt-get", "#!/bin/sh\necho downloading >&2\nexit 1\n")
	cmd := exec.Command(filepath.Join(bin, "make"), "-C", dir, "dist")
	cmd.Env = []string{"PATH=" + bin}
	out, err := cmd.CombinedOutput()
	if said := string(out); err == nil || !strings.Contains(said, "CUDA=1 needs nvcc: tools/install_cuda.sh installs it") || strings.Contains(said, "Illegal") || strings.Contains(said, "downloading") {
		t.Errorf("%v: %s", err, said)
	}
}
