package tools

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/internal/must"
)

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
	file   = regexp.MustCompile(`(?m)(?:^|[ =./])((?:tools|configs|cmd)/[^\s:=]+)`)
	target = regexp.MustCompile(`(?m)^\s*make ([a-z]+)`)
)

// TestDocuments follows every link between files in every document, to its heading if it
// names one, and wants the files and make targets of every command to exist, also of one within a line.
func TestDocuments(t *testing.T) {
	makefile := read(t, "../Makefile") + "\n" + read(t, "../kernels/kernels.mk")
	links, commands := 0, 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == ".git" || name == "build" || name == "logs" || name == "shared") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text := read(t, path)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "://") {
				links++
				follow(t, path, m[1])
			}
		}
		for _, block := range fenced.FindAllString(text, -1) {
			block = strings.Trim(block, "`")
			for _, m := range file.FindAllStringSubmatch(block, -1) {
				commands++
				if _, err := os.Stat(filepath.Join("..", strings.TrimSuffix(m[1], "/..."))); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
			for _, m := range target.FindAllStringSubmatch(block, -1) {
				commands++
				if !strings.Contains(makefile, "\n"+m[1]+": ") {
					t.Errorf("%s: make has no target %s", path, m[1])
				}
			}
		}
		return nil
	})
	if err != nil || links < 10 || commands < 10 {
		t.Errorf("error %v; found %d links and %d commands", err, links, commands)
	}
}

// follow reports a link of the document at path that leads nowhere.
func follow(t *testing.T, path, to string) {
	t.Helper()
	name, heading, _ := strings.Cut(to, "#")
	at := path
	if name != "" {
		at = filepath.Join(filepath.Dir(path), filepath.FromSlash(name))
	}
	if _, err := os.Stat(at); err != nil {
		t.Errorf("%s: %s: no such file", path, to)
		return
	}
	if heading == "" {
		return
	}
	for line := range strings.Lines(read(t, at)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' && anchor(title) == heading {
			return
		}
	}
	t.Errorf("%s: %s: no such heading", path, to)
}

var punctuation = regexp.MustCompile(`[^\pL\pN _-]`)

// anchor returns the name under which a heading is linked to.
func anchor(title string) string {
	return strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
}

// read returns the text of a file without white space around it.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.OK(t, err)
	return strings.TrimSpace(string(b))
}
