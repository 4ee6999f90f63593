package run

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/configs"
)

// session is one training, or several in turns on allocators that are compared.
type session struct {
	cfg            configs.Config
	from           *Earlier // the run to resume; nil: none
	backend        *backend.Backend
	among          []backend.Subject
	until          compare.Target // of a comparison
	bound          int            // the most epochs
	runners        []*runner
	dir            string // the folder of the run or comparison; empty: none
	stdout, stderr io.Writer
	bar            *terminal.Progress
	ranks          *ranks.Ranks // nil: one GPU
}

// verbose prints a line during an epoch.
func (s *session) verbose(line string) {
	_ = s.bar.Print(s.stdout, line) // standard output remembers its error
}

// logError names the key of the folder in an error about it, unless the disk is full.
func (s *session) logError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("the disk of %s is full: %w", s.cfg.Log.LogDir, err)
	}
	return s.cfg.Errorf("log.log_dir", "%w", err)
}

// finished returns the runs as far as they got.
func (s *session) finished() (all []compare.Run) {
	for _, r := range s.runners {
		f := compare.Run{Facts: r.facts, Config: r.cfg.TOML(), Records: r.records, Losses: r.losses, Recording: r.recorder.Recording, Held: r.held()}
		if r.folder != nil {
			f.Folder = r.folder.Dir
		}
		all = append(all, f)
	}
	return all
}

func (s *session) results() compare.Results { return compare.NewResults(s.dir, s.finished()) }
