package plotstyle

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	gpuName = regexp.MustCompile(`NVIDIA [\w -]*\w|Tesla [\w -]*\w`)
	isoDay  = regexp.MustCompile(`\b\d{4}-\d\d-\d\d\b`)
)

// Origin is where figures come from: the GPU if they are of one, and the day, as far
// as notes name them, and the file.
func Origin(notes []string, file string, gpu bool) string {
	all := strings.Join(notes, "; ")
	var parts []string
	if name := gpuName.FindString(all); name != "" && gpu {
		parts = append(parts, name)
	}
	if day := isoDay.FindString(all); day != "" {
		parts = append(parts, day)
	}
	if file != "" {
		parts = append(parts, filepath.Base(file))
	}
	return strings.Join(parts, ", ")
}
