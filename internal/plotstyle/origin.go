package plotstyle

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	gpuName = regexp.MustCompile(`NVIDIA [\w -]*\w|Tesla [\w -]*\w`)
	isoDay  = regexp.MustCompile(`\b\d{4}-\d\d-\d\d\b`)
)

// Origin describes where figures come from: the GPU, if they were measured on one, and the
// days, as far as notes name them, and the file.
func Origin(notes []string, file string, gpu bool) string {
	all := strings.Join(notes, "; ")
	var parts []string
	if name := gpuName.FindString(all); name != "" && gpu {
		parts = append(parts, name)
	}
	if days := isoDay.FindAllString(all, -1); days != nil {
		parts = append(parts, period(slices.Min(days), slices.Max(days)))
	}
	if file != "" {
		parts = append(parts, filepath.Base(file))
	}
	return strings.Join(parts, ", ")
}

// period writes the days from first to last, with the part of last that differs:
// "2026-11-22 to 23", "2026-11-30 to 12-02".
func period(first, last string) string {
	if first == last {
		return first
	}
	for _, shared := range []int{len("2026-11-"), len("2026-")} {
		if first[:shared] == last[:shared] {
			return first + " to " + last[shared:]
		}
	}
	return first + " to " + last
}
