package allocator

import "time"

// Script replaces what t knows of time and chance. Readings of the clock count as
// free.
func (t *Timed) Script(now func() time.Duration, draw func() uint32) {
	t.now, t.draw, t.cost = now, draw, 0
}

const (
	SampleEvery = sampleEvery
	Outlier     = outlier
)
