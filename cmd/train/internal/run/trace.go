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

// writeTrace writes a runner's trace and prints where it is.
func (s *session) writeTrace(r *runner) error {
	note, err := r.writeTrace(s.tracePath(r))
	if err != nil {
		return s.cfg.Errorf("allocator.trace", "%w", err)
	}
	fmt.Fprintln(s.stdout, note)
	return nil
}

// tracePath returns the file of a runner's trace.
func (s *session) tracePath(r *runner) string {
	return tracePath(s.cfg.Allocator.Trace, r.Subject, len(s.runners) > 1)
}

// checkTraces returns an error if a trace could not be written. It changes no file.
func checkTraces(cfg configs.Config, among []backend.Subject) error {
	if cfg.Allocator.Trace == "" {
		return nil
	}
	for _, c := range among {
		if err := output.CheckWritable(tracePath(cfg.Allocator.Trace, c, len(among) > 1)); err != nil {
			return cfg.Errorf("allocator.trace", "%w", err)
		}
	}
	return nil
}

// tracePath returns the file of the trace of a subject, one of several or alone: trace.csv becomes
// trace.custom-bestfit.csv for custom:bestfit.
func tracePath(path string, c backend.Subject, several bool) string {
	if !several {
		return path
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "." + c.File() + ext
}

// writeTrace writes the runner's trace in the format of the file name: .json for Perfetto, .pickle
// for PyTorch's tools, .csv as RMM writes it. It returns a line about it.
func (r *runner) writeTrace(path string) (note string, err error) {
	t := r.trace
	var text bytes.Buffer
	if err := observe.Write(&text, filepath.Ext(path), t, allocator.MapOf(t), r.kernels...); err != nil {
		return "", err
	}
	if err := output.WriteFile(path, text.Bytes()); err != nil {
		return "", err
	}
	events, overflow := t.Events()
	note = fmt.Sprintf("%s: %d calls of the allocator", path, len(events))
	if len(r.kernels) > 0 {
		note += fmt.Sprintf(" and %d kernels", len(r.kernels))
	}
	if overflow {
		note += fmt.Sprintf(", the last ones; %d before them were dropped (allocator.trace_events keeps more)", t.Dropped())
	}
	return note, nil
}
