// Package program says what the running program was built from, and tells it apart from every other
// build.
package program

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"mlpool/kernels"
)

// Build says what the program was built from.
type Build struct {
	Version  string `json:"version"`          // of the module, or "(devel)"
	Commit   string `json:"commit,omitempty"` // empty: nobody noted one
	Date     string `json:"date,omitempty"`   // of the commit, "2026-11-27"
	Modified bool   `json:"modified"`         // the sources differ from the commit
	Go       string `json:"go"`               // "go1.26.0"
	CUDA     string `json:"cuda,omitempty"`   // the toolkit, "12.4"; empty: built without
}

// What the sources are, as "VERSION COMMIT DATE" with a last word "modified" if they differ from the
// commit. The Makefile sets stamp; git archive fills in archived. See .gitattributes.
var (
	stamp    = ""
	archived = "$Format:%(describe:tags=true,match=v*) %H %cs$"
)

// Facts returns the build of the running program.
func Facts() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return newBuild(info, kernels.Toolkit(), stamp, archived)
}

// newBuild returns the build that info and toolkit describe, and the first of stamps that names a commit, if
// info does not. toolkit is 1000·major + 10·minor, or 0.
func newBuild(info *debug.BuildInfo, toolkit int, stamps ...string) Build {
	b := Build{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date, _, _ = strings.Cut(s.Value, "T")
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, stamp := range stamps {
		b.read(stamp)
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if toolkit > 0 {
		b.CUDA = CUDAVersion(toolkit)
	}
	return b
}

// read takes from a stamp what is not known yet.
func (b *Build) read(stamp string) {
	m := stampFormat.FindStringSubmatch(stamp)
	if m == nil || b.Commit != "" && b.Commit != m[2] {
		return
	}
	if m[1] != "" && (b.Version == "" || b.Version == "(devel)") {
		b.Version = m[1]
	}
	b.Commit, b.Date, b.Modified = m[2], m[3], b.Modified || m[4] != ""
}

var stampFormat = regexp.MustCompile(`^(v\S+)? ?([0-9a-f]{40}) (\d{4}-\d\d-\d\d)( modified)?$`)

// Sum returns the SHA-256 of the program file. It differs between builds of the same commit.
var Sum = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return fmt.Sprintf("%x", sum.Sum(nil)), err
})

// String returns one line.
func (b Build) String() string {
	parts := []string{"mlpool " + b.Version}
	switch {
	case b.Commit == "":
		parts = append(parts, "commit not noted")
	case b.Date == "":
		parts = append(parts, "commit "+b.Commit)
	default:
		parts = append(parts, "commit "+b.Commit+" of "+b.Date)
	}
	if b.Modified {
		parts = append(parts, "modified")
	}
	parts = append(parts, b.Go)
	if b.CUDA == "" {
		return strings.Join(append(parts, "built without CUDA"), ", ")
	}
	return strings.Join(append(parts, "CUDA "+b.CUDA), ", ")
}

// CUDAVersion returns "12.8" for 12080, as CUDA numbers its versions.
func CUDAVersion(n int) string { return fmt.Sprintf("%d.%d", n/1000, n%1000/10) }
