package tools

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinks follows every link between files, pictures among them, in every Markdown
// file, to the heading where it names one.
func TestLinks(t *testing.T) {
	pages, links := 0, 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "logs"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pages++
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			if err := follow(path, m[1]); err != "" {
				t.Errorf("%s: %s: %s", path, m[1], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 2 || links < 10 {
		t.Errorf("%d links in %d files: are they looked for in the right place?", links, pages)
	}
}

// TestCommands looks at the lines between fences: a target of make must be one, and
// what is of the tools or the configs must be there.
func TestCommands(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, page := range []string{"../README.md", "../assets/README.md", "allocbench/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range strings.Split(string(text), "```") {
			if i%2 == 0 {
				continue // outside fences
			}
			for line := range strings.Lines(part) {
				line, _, _ = strings.Cut(line, "#")
				if _, target, ok := strings.Cut(line, "make "); ok {
					target, _, _ = strings.Cut(strings.TrimSpace(target), " ")
					if !strings.Contains(string(makefile), "\n"+target+": ") {
						t.Errorf("%s: make has no target %q", page, target)
					}
					commands++
				}
				for _, word := range strings.Fields(line) {
					word = strings.TrimPrefix(word, "./")
					if !strings.HasPrefix(word, "tools/") && !strings.HasPrefix(word, "configs/") && !strings.HasPrefix(word, "cmd/") {
						continue
					}
					if _, err := os.Stat(filepath.Join("..", word)); err != nil {
						t.Errorf("%s: %v", page, err)
					}
					commands++
				}
			}
		}
	}
	if commands < 10 {
		t.Errorf("%d commands: are they looked for in the right place?", commands)
	}
}

// follow says what is wrong with a link in the file at path.
func follow(path, link string) string {
	file, heading, _ := strings.Cut(link, "#")
	if file != "" {
		path = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
	}
	if _, err := os.Stat(path); err != nil {
		return "no such file"
	}
	if heading == "" {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' && anchor(title) == heading {
			return ""
		}
	}
	return "no such heading"
}

// anchor is the name by which a heading is linked to.
func anchor(title string) string {
	title = regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
	return strings.ReplaceAll(title, " ", "-")
}

func TestFollow(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# Title\n\n## `[train]`, and so on\n\nno heading\n#hashtag\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		"page.md": "", "#title": "", "page.md#train-and-so-on": "", ".": "",
		"#no-heading": "no such heading", "#hashtag": "no such heading", "other.md": "no such file", "other.md#title": "no such file",
	} {
		if got := follow(page, link); got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}
