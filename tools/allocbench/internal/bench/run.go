package bench

import (
	"context"
	"errors"
	"time"

	"mlpool/allocator"
)

// Limits are those of a measurement.
type Limits struct {
	Quick bool          // few operations: times mean nothing
	Most  time.Duration // of one measurement
}

// Run runs a case on a new allocator.
func (m Machine) Run(ctx context.Context, a Contender, c Case, l Limits) (rows []Row, err error) {
	if a.MemoryOnly {
		m = Machine{Open: func() (Device, error) { return NewNull(), nil }}
	}
	d, err := m.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if n, isNull := d.(*null); isNull {
		n.PagesFor(c.Live)
	}
	under, err := a.Open(d)
	if err != nil {
		return nil, err
	}
	if m.Wrap != nil {
		under = m.Wrap(d, under)
	}
	b := &Bench{Device: d, A: under, Streams: make([]allocator.Stream, c.Streams), ctx: ctx, Limits: l, memoryOnly: a.MemoryOnly}
	for i := range b.Streams {
		if err == nil {
			b.Streams[i], err = d.NewStream()
		}
	}
	if err == nil {
		err = c.Run(b)
	}
	err = errors.Join(err, d.Synchronize())
	if closeErr := under.Close(); err == nil { // after another error, leaks are expected
		err = closeErr
	}
	return b.Rows, err
}
