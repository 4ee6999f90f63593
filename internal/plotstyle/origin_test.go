package plotstyle

import "testing"

func TestOrigin(t *testing.T) {
	for want, notes := range map[string][]string{
		"NVIDIA H200, 2026-11-22, a.csv":            {"NVIDIA H200, 2026-11-22: x", "NVIDIA H200, 2026-11-22: y"},
		"NVIDIA H200, 2026-11-22 to 23, a.csv":      {"NVIDIA H200, 2026-11-23: x", "NVIDIA H200, 2026-11-22: y"},
		"2026-11-30 to 12-02, a.csv":                {"2026-11-30", "2026-12-01", "2026-12-02"},
		"Tesla T4, 2026-12-31 to 2027-01-01, a.csv": {"Tesla T4, 2026-12-31, 2027-01-01"},
		"a.csv": nil,
	} {
		if got := Origin(notes, "folder/a.csv", true); got != want {
			t.Errorf("%q: %q, want %q", notes, got, want)
		}
	}
}
