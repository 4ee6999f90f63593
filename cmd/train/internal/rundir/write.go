package rundir

import (
	"encoding/json"
	"fmt"
	"io"

	"mlpool/internal/output"
)

// PrintJSON writes value to w for -json. It ignores errors of w: see terminal.Output.
func PrintJSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	_, _ = w.Write(append(text, '\n'))
	return nil
}

// WriteJSON writes a value as indented JSON, in the way of [output.WriteFile].
func WriteJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return output.WriteFile(path, append(text, '\n'))
}
