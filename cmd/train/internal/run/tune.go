package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/data"
	"mlpool/internal/text"
	"mlpool/kernels/device"
)

// chooseKernels chooses the kernels of GEMMs: with tune those that are fastest in a step of the training, whose
// weights are then dropped, else those of the run that is resumed.
func (s *session) chooseKernels(tune bool, set data.Dataset) (err error) {
	if !tune {
		if s.kernels, err = s.from.kernels(); err != nil {
			return err
		}
		return device.Choose(s.backend.Queue, s.kernels)
	}
	if !s.backend.GPU {
		return errors.New("-tune chooses among kernels for GPUs, and this training is on the CPU: leave it out")
	}
	c := s.among[0]
	r := &runner{Subject: c, cfg: c.Of(s.cfg), ranks: s.ranks}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(s.backend, set, s.verbose); err != nil {
		return err
	}
	if s.kernels, err = r.device.Tune(r.trainer.Repeat); err != nil {
		return fmt.Errorf("-tune: %w", err)
	}
	fmt.Fprintf(s.stdout, " tuned: %s by another kernel than usual\n", text.Count(len(s.kernels), "GEMM"))
	for _, k := range s.kernels {
		fmt.Fprintf(s.stdout, "   %d×%d×%d by %s\n", k.M, k.N, k.K, k.Kernel)
	}
	return nil
}

// kernels returns the kernels that -tune chose for the run.
func (e *Earlier) kernels() (all []device.Choice, err error) {
	if e == nil || e.Run.Facts.Kernels == nil {
		return nil, nil
	}
	if err := json.Unmarshal(e.Run.Facts.Kernels, &all); err != nil {
		return nil, fmt.Errorf("%s: kernels: %w", filepath.Join(e.Run.Dir, rundir.FactsFile), err)
	}
	return all, nil
}

// kernelFacts returns what run.json says of the kernels that were chosen.
func (s *session) kernelFacts() (json.RawMessage, error) {
	if len(s.kernels) == 0 {
		return nil, nil
	}
	return json.Marshal(s.kernels)
}
