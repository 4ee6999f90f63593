//go:build linux

package tools

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeApt stands for apt-get, apt-cache, apt-config, dpkg-deb and sudo, on a machine
// whose sources are $DIR/etc. It writes what changes the machine, or a folder of apt's own,
// to $DIR/log. The toolkit is there to install from the start with HAVE, else once components
// were added. apt-get knows the entries in ENTRIES as Debian's main, and downloads what
// $DIR/packages has: a package is no more than its tar file.
const fakeApt = `#!/usr/bin/env bash
own=
while [[ $1 == -* ]]; do
	[[ $1 == -o ]] && shift
	[[ $1 == Dir::Etc=* ]] && own=${1#*=}
	shift
done
case ${0##*/}:$1 in
sudo:*) exec "$@" ;;
dpkg-deb:*) cat "$1" ;;
apt-config:*) echo "parts='$DIR/etc/parts/'" ;;
apt-cache:*)
	if [[ $HAVE ]] || compgen -G "$DIR/etc/parts/cuda-contrib.*" >/dev/null; then
		echo "  Candidate: 11.8.0-1"
	else
		echo "  Candidate: (none)"
	fi
	;;
apt-get:indextargets)
	case $* in
	*"Component: main"*) for e in $ENTRIES; do echo "$e"; done ;;
	*"Component: contrib"*) printf '%s\n' $CONTRIB ;;
	esac
	;;
apt-get:update)
	echo update >>"$DIR/log"
	[[ ! $own ]] || cat "$own/sources.list" >>"$DIR/log"
	[[ ! $OFFLINE ]]
	;;
apt-get:download)
	echo "$*" >>"$DIR/log"
	for package in "${@:2}"; do
		cat "$DIR/packages/$package" >"${package}_12.deb" || exit 100
	done
	;;
apt-get:install)
	echo "$*" >>"$DIR/log"
	[[ $BROKEN ]] && exit 100
	printf '#!/bin/sh\n' >"$DIR/bin/nvcc"
	chmod +x "$DIR/bin/nvcc"
	;;
esac
`

const deb822 = `# A comment, and no source.

Types: deb deb-src
# A comment in a source.
URIs: http://mirror.example/others
Suites: stable
Components: main

Types: deb deb-src
# Another.
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components:
 main
 non-free-firmware
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
`

const oneLine = `# A comment.
deb-src http://mirror.example/debian bookworm main

deb [signed-by=/usr/share/keyrings/debian.gpg arch=amd64]  http://mirror.example/debian bookworm main non-free-firmware # here
deb http://mirror.example/debian bookworm-updates main
`

func TestInstallCUDA(t *testing.T) {
	const installed = "update\nupdate\ninstall -y --no-install-recommends nvidia-cuda-toolkit g++"
	const elsewhere = "install the CUDA toolkit, 11.8 or later"
	for name, c := range map[string]struct {
		nvcc, noApt bool
		env         []string
		sources     string // what cuda-contrib.sources then holds
		list        string // what cuda-contrib.list then holds
		log         string // what was done
		says        string
		fails       bool
	}{
		"nvcc is there": {nvcc: true, says: "is there already"},
		"no apt":        {noApt: true, says: elsewhere, fails: true},
		"deb822": {
			env: []string{"ENTRIES=debian.sources:2"},
			sources: "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: contrib non-free\n" +
				"Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc",
			log: installed, says: `adding "contrib non-free"`,
		},
		"one line": {
			env: []string{"ENTRIES=debian.list:4 debian.list:5"},
			list: "deb [signed-by=/usr/share/keyrings/debian.gpg arch=amd64]  http://mirror.example/debian bookworm contrib non-free\n\n" +
				"deb http://mirror.example/debian bookworm-updates contrib non-free",
			log: installed, says: `adding "contrib non-free"`,
		},
		"contrib is there": {
			env:  []string{"ENTRIES=debian.list:5", "CONTRIB=contrib"},
			list: "deb http://mirror.example/debian bookworm-updates non-free",
			log:  installed, says: `adding "non-free"`,
		},
		"available already": {env: []string{"HAVE=1"}, log: "update\ninstall -y --no-install-recommends nvidia-cuda-toolkit g++", says: "installing"},
		"not Debian":        {log: "update", says: elsewhere, fails: true},
		"cannot install": {
			env: []string{"HAVE=1", "BROKEN=1"}, log: "update\ninstall -y --no-install-recommends nvidia-cuda-toolkit g++",
			says: "could not install", fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, bash := sandbox(t, "awk", "bash", "cat", "chmod", "env", "sed", "sort", "tee")
			bin, etc := filepath.Join(dir, "bin"), filepath.Join(dir, "etc")
			if err := os.MkdirAll(filepath.Join(etc, "parts"), 0o777); err != nil {
				t.Fatal(err)
			}
			fake(t, etc, "debian.sources", deb822)
			fake(t, etc, "debian.list", oneLine)
			if c.nvcc {
				fake(t, bin, "nvcc", "#!/bin/sh\n")
			}
			if !c.noApt {
				for _, name := range []string{"apt-get", "apt-cache", "apt-config", "sudo"} {
					fake(t, bin, name, fakeApt)
				}
			}
			cmd := exec.Command(bash, "install_cuda.sh")
			cmd.Env = []string{"PATH=" + bin, "DIR=" + dir}
			for _, e := range c.env {
				cmd.Env = append(cmd.Env, strings.ReplaceAll(e, "debian.", etc+"/debian."))
			}
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails || !strings.Contains(string(out), c.says) {
				t.Errorf("error %v, output %q, want %q", err, out, c.says)
			}
			if strings.Contains(string(out), "mirror.example") {
				t.Errorf("it prints a host's name: %q", out)
			}
			for file, want := range map[string]string{
				"log": c.log, "etc/parts/cuda-contrib.sources": c.sources, "etc/parts/cuda-contrib.list": c.list,
			} {
				got, _ := os.ReadFile(filepath.Join(dir, file))
				if strings.TrimSpace(string(got)) != want {
					t.Errorf("%s holds %q, want %q", file, got, want)
				}
			}
		})
	}
}

// newer is what a test has as the packages of a newer toolkit: a name and the files, of
// which one that ends in @ is a link.
func newer() map[string]map[string]string {
	const lib = "usr/lib/x86_64-linux-gnu/"
	return map[string]map[string]string{
		"nvidia-cuda-toolkit": {
			"usr/bin/nvcc": "a script of Debian's", "usr/bin/ptxas": "ptxas", "usr/bin/sanitizer@": "../lib/nowhere",
			"usr/lib/nvidia-cuda-toolkit/bin/nvcc": "#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n",
			"usr/lib/nvidia-cuda-toolkit/bin/cicc": "cicc", "usr/lib/nvidia-cuda-toolkit/bin/crt/link.stub": "stub",
			"usr/lib/nvidia-cuda-toolkit/bin/gcc": "gcc", "usr/lib/nvidia-cuda-toolkit/bin/g++": "g++",
			"usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc": "bc",
		},
		"nvidia-cuda-dev": {
			"usr/include/cuda.h": "cuda.h", "usr/include/cublas.h": "too much", lib + "libcublas_static.a": "far too much",
			lib + "libcudart_static.a": "cudart",
		},
		"libnvvm4": {lib + "libnvvm.so@": "libnvvm.so.4", lib + "libnvvm.so.4": "nvvm"},
	}
}

// writePackages puts packages where fakeApt downloads them from.
func writePackages(t *testing.T, dir string, packages map[string]map[string]string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, "packages"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, files := range packages {
		var deb bytes.Buffer
		w := tar.NewWriter(&deb)
		for _, path := range slices.Sorted(maps.Keys(files)) {
			content := files[path]
			h := &tar.Header{Name: "./" + path, Mode: 0o755, Size: int64(len(content))}
			if link, ok := strings.CutSuffix(h.Name, "@"); ok {
				h = &tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: content}
				content = ""
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		fake(t, filepath.Join(dir, "packages"), name, deb.String())
	}
}

// files lists what is below dir, but for what the test put there.
func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || name == "packages"):
			return filepath.SkipDir
		case !d.IsDir():
			paths = append(paths, name)
		case name != "." && d.IsDir():
			if inside, err := os.ReadDir(path); err != nil || len(inside) == 0 {
				paths = append(paths, name+"/")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestUnpackCUDA(t *testing.T) {
	const log = "update\ndeb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian trixie main contrib non-free\n"
	const downloaded = log + "download nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4"
	laidOut := []string{
		"log", "new/cuda/bin/crt/link.stub", "new/cuda/bin/nvcc", "new/cuda/bin/nvcc.profile", "new/cuda/bin/ptxas",
		"new/cuda/include/cuda.h", "new/cuda/lib64/libcudart_static.a", "new/cuda/lib64/libnvvm.so", "new/cuda/lib64/libnvvm.so.4",
		"new/cuda/nvvm/bin/cicc", "new/cuda/nvvm/bin/g++", "new/cuda/nvvm/bin/gcc", "new/cuda/nvvm/libdevice/libdevice.10.bc",
	}
	failed := []string{"log", "new/"}
	for name, c := range map[string]struct {
		change func(packages map[string]map[string]string)
		env    []string
		empty  bool     // DIR is there
		there  []string // files in DIR before
		noTool string
		log    string
		says   string // last
		fails  bool
		files  []string
	}{
		"unpacks":       {log: downloaded, says: "CUDA 12.4 is in DIR", files: laidOut},
		"empty folder":  {empty: true, log: downloaded, says: "CUDA 12.4 is in DIR", files: laidOut},
		"there already": {there: []string{"bin/nvcc"}, says: "DIR/bin/nvcc is there already", files: []string{"new/cuda/bin/nvcc"}},
		"something else": {
			there: []string{"bin/gcc"}, says: "DIR holds something else: name a folder that is empty or not there yet", fails: true, files: []string{"new/cuda/bin/gcc"},
		},
		"not Debian":  {env: []string{"ENTRIES="}, says: "apt knows no source of Debian's: install the CUDA toolkit", fails: true},
		"no dpkg-deb": {noTool: "dpkg-deb", says: "no dpkg-deb here: install the CUDA toolkit", fails: true},
		"offline":     {env: []string{"OFFLINE=1"}, log: strings.TrimSpace(log), says: "apt-get update failed: see above", fails: true, files: failed},
		"a download fails": {
			change: func(p map[string]map[string]string) { delete(p, "libnvvm4") },
			log:    downloaded, says: "apt-get could not download: see above", fails: true, files: failed,
		},
		"another layout": {
			change: func(p map[string]map[string]string) {
				delete(p["nvidia-cuda-toolkit"], "usr/lib/nvidia-cuda-toolkit/bin/cicc")
			},
			log: downloaded, says: "the packages of trixie's toolkit have another layout than this script knows: see above", fails: true, files: failed,
		},
		"nvcc does not start": {
			change: func(p map[string]map[string]string) {
				p["nvidia-cuda-toolkit"]["usr/lib/nvidia-cuda-toolkit/bin/nvcc"] = "#!/bin/sh\nexit 1\n"
			},
			log: downloaded, says: "the nvcc of trixie's toolkit does not start here: install the CUDA toolkit", fails: true, files: failed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, bash := sandbox(t, "bash", "cat", "find", "head", "ls", "mkdir", "mktemp", "mv", "realpath", "rm", "sed", "sort", "tar")
			bin, to := filepath.Join(dir, "bin"), filepath.Join(dir, "new", "cuda")
			for _, name := range []string{"apt-get", "dpkg-deb"} {
				if name != c.noTool {
					fake(t, bin, name, fakeApt)
				}
			}
			fake(t, bin, "uname", "#!/bin/sh\necho x86_64\n")
			if c.empty {
				if err := os.MkdirAll(to, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range c.there {
				folder, file := filepath.Split(filepath.Join(to, path))
				if err := os.MkdirAll(folder, 0o777); err != nil {
					t.Fatal(err)
				}
				fake(t, folder, file, "")
			}
			packages := newer()
			if c.change != nil {
				c.change(packages)
			}
			writePackages(t, dir, packages)
			run := func(says string, fails bool) {
				t.Helper()
				cmd := exec.Command(bash, "install_cuda.sh", to)
				cmd.Env = append([]string{"PATH=" + bin, "DIR=" + dir, "TMPDIR=" + dir, "ENTRIES=http://mirror.example/debian"}, c.env...)
				out, err := cmd.CombinedOutput()
				lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(out), to, "DIR")), "\n")
				if (err != nil) != fails || !strings.HasPrefix(lines[len(lines)-1], "install_cuda.sh: "+says) {
					t.Errorf("error %v, output %q, want %q", err, out, says)
				}
				if got := files(t, dir); !slices.Equal(got, c.files) {
					t.Errorf("it leaves %q, want %q", got, c.files)
				}
				if got, _ := os.ReadFile(filepath.Join(dir, "log")); strings.TrimSpace(string(got)) != c.log {
					t.Errorf("it did %q, want %q", got, c.log)
				}
			}
			run(c.says, c.fails)
			if slices.Equal(c.files, laidOut) {
				if got := read(t, filepath.Join(to, "bin", "nvcc")); !strings.HasPrefix(got, "#!/bin/sh") {
					t.Errorf("bin/nvcc is %q", got)
				}
				run("DIR/bin/nvcc is there already", false)
			}
		})
	}
}

// TestInstallCUDAUse: nothing is done for arguments that are not understood.
func TestInstallCUDAUse(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
	}{
		{[]string{"-h"}, 0}, {[]string{"--help"}, 0}, {[]string{"--what"}, 2}, {[]string{""}, 2}, {[]string{"a", "b"}, 2},
	} {
		dir, bash := sandbox(t, "cat")
		cmd := exec.Command(bash, append([]string{"install_cuda.sh"}, c.args...)...)
		cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin")}
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.status || !strings.HasPrefix(string(out), "usage: install_cuda.sh [DIR]\n") {
			t.Errorf("%q: status %d, %q", c.args, cmd.ProcessState.ExitCode(), out)
		}
	}
}
