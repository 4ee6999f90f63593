package main

import (
	"context"

	"mlpool/allocator/observe"
	"mlpool/internal/report"
)

// cardStep is how exactly the smallest card is found, as a share of it.
const cardStep = 1. / 256

// card returns the smallest memory of a device in which a contender finishes the trace. It is 0 if that is not
// known without the device, or is more than any device has.
func (s *session) card(ctx context.Context, t *observe.Requests, c contender) (report.Card, error) {
	if c.driver {
		return report.Card{}, nil
	}
	bytes, err := s.smallest(ctx, t, c)
	return report.Card{Name: c.name, Bytes: bytes, Live: t.Peak}, err
}

// smallest finds the smallest memory by bisection: what is reserved without a limit is enough, and less than
// what is live is not.
func (s *session) smallest(ctx context.Context, t *observe.Requests, c contender) (int64, error) {
	enough, _, err := s.peak(ctx, t, t.Events, c.open, nullBytes)
	if outOfMemory(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	few := t.Peak - 1
	for enough-few > max(int64(float64(enough)*cardStep), mib) {
		middle := few + (enough-few)/2
		switch _, _, err := s.peak(ctx, t, t.Events, c.open, middle); {
		case err == nil:
			enough = middle
		case outOfMemory(err):
			few = middle
		default:
			return 0, err
		}
	}
	return enough, nil
}
