package run

import (
	"path/filepath"
	"testing"

	"mlpool/cmd/train/internal/backend"
)

func TestLogDir(t *testing.T) {
	for c, want := range map[backend.Subject]string{
		{Kind: backend.CustomPool}:                       "logs",
		{Kind: backend.CUDAAsync}:                        "logs/cuda",
		{Kind: backend.CustomPool, Strategy: "bestfit"}:  "logs/custom-bestfit",
		{Kind: backend.PlannedPool, Strategy: "bestfit"}: "logs/plan-bestfit",
	} {
		if got := logDir("logs", c); filepath.ToSlash(got) != want {
			t.Errorf("%s: %q, want %q", c, got, want)
		}
	}
}
