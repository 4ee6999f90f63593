package report

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"mlpool/internal/must"
)

var update = flag.Bool("update", false, "write the pages in testdata")

// TestGolden compares two small pages with those in testdata, but for their style and script. To see what a change
// of the package does to a page, run go test -update and look at the difference.
func TestGolden(t *testing.T) {
	for name, p := range map[string]Page{"training": sampleTraining(), "trace": sampleReplay()} {
		text, _ := written(t, p)
		_, text, _ = strings.Cut(text, "</style>")
		text, _, _ = strings.Cut(text, "<script>")
		text = regexp.MustCompile("<template>[^<]*").ReplaceAllString(text, "<template>") // testDecodes reads it
		text = strings.ReplaceAll(text, "><", ">\n<")
		file := "testdata/" + name + ".txt"
		if *update {
			must.OK(t, os.WriteFile(file, []byte(text), 0o666))
		}
		lines := strings.Split(string(must.Read(t, file)), "\n")
		for i, line := range strings.Split(text, "\n") {
			if i >= len(lines) || line != lines[i] {
				t.Errorf("%s:%d: the page has\n%s\nRun go test -update and look at the difference.", file, i+1, line)
				break
			}
		}
		if n := strings.Count(text, "\n") + 1; n < len(lines) {
			t.Errorf("%s: the page has only %d of %d lines", name, n, len(lines))
		}
	}
}
