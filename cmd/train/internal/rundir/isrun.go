package rundir

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// IsRun reports whether path is the folder of a run or of a comparison. -export writes a run.json
// as well, but without a status.
func IsRun(path string) bool {
	if _, err := os.Stat(filepath.Join(path, ComparisonFile)); err == nil {
		return true
	}
	file := filepath.Join(path, FactsFile)
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() { // a pipe may never end
		return false
	}
	text, err := os.ReadFile(file)
	var facts Facts
	return err == nil && (json.Unmarshal(text, &facts) != nil || facts.Status != "")
}
