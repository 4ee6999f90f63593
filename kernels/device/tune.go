package device

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mlpool/internal/stats"
	"mlpool/kernels"
)

// A Choice says which kernel computes the GEMMs of one kind and size.
type Choice struct {
	Layout   kernels.Layout   `json:"layout"`
	Epilogue kernels.Epilogue `json:"epilogue"`
	Images   bool             `json:"images,omitempty"` // A is a gathered view
	M        int              `json:"m"`
	N        int              `json:"n"`
	K        int              `json:"k"`
	Kernel   string           `json:"kernel"`
}

// A chooser is a queue whose kernels can be chosen.
type chooser interface {
	Candidates(g kernels.GEMM) []string
	Choose(g kernels.GEMM, kernel string) error
}

// kindOf returns the choice of no kernel for GEMMs like g.
func kindOf(g kernels.GEMM) Choice {
	return Choice{g.Layout, g.Epilogue, g.Indices != 0, g.M, g.N, g.K, ""}
}

// gemm returns a GEMM of the choice's kind, whose arrays are aligned as an allocator's blocks are.
func (c Choice) gemm() kernels.GEMM {
	const block = 1 << 20
	g := kernels.GEMM{Layout: c.Layout, Epilogue: c.Epilogue, C: block, A: block, B: block, Y: block, M: c.M, N: c.N, K: c.K}
	if c.Images {
		g.Indices = block
	}
	return g
}

var errNoChoice = errors.New("there is no choice of kernels on the CPU")

// Choose makes choices for the GEMMs of a queue, and of others of its precision. It returns an error on the
// CPU, or if there is no such kernel.
func Choose(q Queue, all []Choice) error {
	if len(all) == 0 {
		return nil
	}
	chooser, ok := q.(chooser)
	if !ok {
		return errNoChoice
	}
	for _, c := range all {
		if err := chooser.Choose(c.gemm(), c.Kernel); err != nil {
			return fmt.Errorf("kernel %s for a GEMM of %d×%d×%d: %w", c.Kernel, c.M, c.N, c.K, err)
		}
	}
	return nil
}

// Each kernel of a GEMM is timed tuneRounds times, alternately with the others, in launches of
// tuneLaunches. One that is not leastGain faster than the kernel of the table is not chosen.
const (
	tuneRounds   = 7
	tuneLaunches = 10
	leastGain    = 0.02
)

// Tune runs step, which queues a training step, and times each of its GEMMs with every kernel that can
// compute it. It makes the choices that are faster, and returns them. The weights that step updates are
// spoiled.
func (d *Device) Tune(step func() error) ([]Choice, error) {
	q, ok := d.bare().(chooser)
	if !ok {
		return nil, errNoChoice
	}
	t := tuner{chooser: q, queue: d.bare(), seen: make(map[Choice]bool)}
	annotated := d.queue
	defer func() { d.queue = annotated }()
	d.queue = Observe(t.queue, func(l Launch, queue func() error) error {
		if len(l.GEMMs) > 0 && l.Name != nameDgradWgrad {
			if err := t.tune(l.GEMMs, queue); err != nil {
				return err
			}
		}
		return queue()
	})
	return t.choices, errors.Join(step(), d.Synchronize())
}

// tuner chooses the kernels of a step.
type tuner struct {
	chooser
	queue   Queue
	seen    map[Choice]bool // kinds of GEMMs
	choices []Choice
}

// tune chooses the kernels of the GEMMs of one launch, which queue queues: one kernel for all of a group
// that it can compute.
func (t *tuner) tune(group []kernels.GEMM, queue func() error) error {
	group = slices.DeleteFunc(slices.Clone(group), func(g kernels.GEMM) bool { return t.seen[kindOf(g)] })
	names := []string{""} // that of the table
	for _, g := range group {
		t.seen[kindOf(g)] = true
		for _, name := range t.Candidates(g) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) <= 2 {
		return nil // the table's kernel, and that by its name
	}
	times := make([][]time.Duration, len(names))
	for range tuneRounds {
		for i, name := range names {
			if err := t.choose(group, name); err != nil {
				return err
			}
			took, err := t.time(queue)
			if err != nil {
				return fmt.Errorf("kernel %q: %w", name, err)
			}
			times[i] = append(times[i], took)
		}
	}
	best, least := "", (1-leastGain)*float64(stats.Median(times[0]))
	for i, name := range names {
		if took := float64(stats.Median(times[i])); took < least {
			best, least = name, took
		}
	}
	if err := t.choose(group, best); err != nil || best == "" {
		return err
	}
	for _, g := range group {
		if slices.Contains(t.Candidates(g), best) {
			c := kindOf(g)
			if c.Kernel = best; !slices.Contains(t.choices, c) {
				t.choices = append(t.choices, c)
			}
		}
	}
	return nil
}

// choose has a kernel compute those GEMMs that it can, and the table choose for the others.
func (t *tuner) choose(group []kernels.GEMM, kernel string) error {
	for _, g := range group {
		name := ""
		if slices.Contains(t.Candidates(g), kernel) {
			name = kernel
		}
		if err := t.Choose(g, name); err != nil {
			return err
		}
	}
	return nil
}

// time returns the time of tuneLaunches launches, after one that is not counted.
func (t *tuner) time(queue func() error) (time.Duration, error) {
	if err := errors.Join(queue(), t.queue.Mark(0)); err != nil {
		return 0, err
	}
	for range tuneLaunches {
		if err := queue(); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(t.queue.Mark(1), t.queue.Synchronize()); err != nil {
		return 0, err
	}
	return t.queue.Elapsed(0, 1)
}
