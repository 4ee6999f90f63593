package run

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/cmd/train/internal/backend"
	"mlpool/configs"
	"mlpool/internal/output"
)

// newAllocator returns the runner's allocator, with poison and a trace around it if section
// [allocator] asks for them.
func (r *runner) newAllocator(b *backend.Backend, cfg configs.Config) (allocator.Allocator, error) {
	c := cfg.Allocator
	a, err := b.NewAllocator(r.Kind, cfg)
	if err != nil {
		return nil, err
	}
	if c.Poison {
		a = allocator.NewPoison(a, b.Filler())
	}
	if c.Trace != "" {
		r.trace = allocator.NewTrace(a, c.TraceEvents)
		a = r.trace
	}
	return a, nil
}

// writeTraces writes the runners' traces.
func (s *session) writeTraces() error {
	defer s.ranks.Write()()
	var errs []error
	for _, r := range s.runners {
		if r.trace != nil {
			errs = append(errs, s.writeTrace(r))
		}
	}
	return errors.Join(errs...)
}

// writeTrace writes a runner's trace in the format of the file name: .json for Perfetto, .pickle for
// PyTorch's tools, .csv as RMM writes it. It prints a line about it.
func (s *session) writeTrace(r *runner) error {
	path := s.tracePath(r.Subject)
	var text bytes.Buffer
	err := observe.Write(&text, filepath.Ext(path), r.trace, allocator.MapOf(r.trace), r.kernels...)
	if err == nil {
		err = output.WriteFile(path, text.Bytes())
	}
	if err != nil {
		return s.cfg.Errorf("allocator.trace", "%w", err)
	}
	events, overflow := r.trace.Events()
	note := fmt.Sprintf("%s: %d calls of the allocator", path, len(events))
	if len(r.kernels) > 0 {
		note += fmt.Sprintf(" and %d kernels", len(r.kernels))
	}
	if overflow {
		note += fmt.Sprintf(", the last ones; %d before them were dropped (allocator.trace_events keeps more)", r.trace.Dropped())
	}
	fmt.Fprintln(s.stdout, note)
	return nil
}

// checkTraces returns an error if a trace could not be written. It changes no file.
func (s *session) checkTraces() error {
	if s.cfg.Allocator.Trace == "" {
		return nil
	}
	for _, c := range s.among {
		if err := output.CheckWritable(s.tracePath(c)); err != nil {
			return s.cfg.Errorf("allocator.trace", "%w", err)
		}
	}
	return nil
}

// tracePath returns the file of the trace of a subject. In a comparison trace.csv becomes
// trace.custom-bestfit.csv for custom:bestfit.
func (s *session) tracePath(c backend.Subject) string {
	path := s.cfg.Allocator.Trace
	if len(s.among) == 1 {
		return path
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "." + c.File() + ext
}
