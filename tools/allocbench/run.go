package main

import (
	"context"
	"errors"
	"time"
)

// limits are those of a measurement.
type limits struct {
	quick bool          // few operations: the figures mean nothing
	most  time.Duration // of one measurement
}

// run runs a case on a new allocator.
func (m machine) run(ctx context.Context, a contender, c testCase, l limits) (rows []row, err error) {
	if a.memoryOnly {
		m = machine{open: func() (device, error) { return newNull(), nil }}
	}
	d, err := m.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	under, err := a.open(d)
	if err != nil {
		return nil, err
	}
	if m.wrap != nil {
		under = m.wrap(d, under)
	}
	b := &bench{device: d, a: under, ctx: ctx, limits: l, memoryOnly: a.memoryOnly}
	err = c.run(b)
	err = errors.Join(err, d.Synchronize())
	if closeErr := under.Close(); err == nil { // after another error, leaks are expected
		err = closeErr
	}
	return b.rows, err
}
