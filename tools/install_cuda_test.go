//go:build unix

package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeApt stands for apt-get, apt-cache, apt-config and sudo, on a machine
// whose sources are $DIR/etc. It writes what changes the machine to $DIR/log.
// The toolkit is there to install from the start with HAVE, else once components
// were added. apt-get knows the entries in ENTRIES as Debian's main.
const fakeApt = `#!/usr/bin/env bash
while [[ $1 == -* ]]; do
	[[ $1 == -o ]] && shift
	shift
done
case ${0##*/}:$1 in
sudo:*) exec "$@" ;;
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
apt-get:update) echo update >>"$DIR/log" ;;
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
