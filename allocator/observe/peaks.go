package observe

import (
	"time"

	"mlpool/allocator"
)

// Peaks keeps the highest counts of a recording: for each interval of time, the most bytes
// that were live and the most that were reserved. The intervals double in length as the
// recording goes on, so any number of events takes the same memory. Make one with
// [NewPeaks].
type Peaks struct {
	interval time.Duration
	peaks    []peak
}

// A Peak is the highest counts of one interval.
type Peak struct {
	Time           time.Duration // when Live was reached, since the recording began
	Live, Reserved int64         // bytes
}

type peak struct {
	Peak
	seen bool // an event fell into the interval
}

// NewPeaks returns Peaks of up to intervals intervals.
func NewPeaks(intervals int) *Peaks {
	return &Peaks{time.Nanosecond, make([]peak, intervals)}
}

// Add adds an event. Events may come in any order.
func (p *Peaks) Add(e allocator.TraceEvent) {
	for e.Time/p.interval >= time.Duration(len(p.peaks)) {
		p.double()
	}
	p.peaks[e.Time/p.interval].add(peak{Peak{e.Time, e.Live, e.Reserved}, true})
}

func (p *peak) add(o peak) {
	if !o.seen {
		return
	}
	if !p.seen || o.Live > p.Live {
		p.seen, p.Time, p.Live = true, o.Time, o.Live
	}
	p.Reserved = max(p.Reserved, o.Reserved)
}

// double joins the intervals in pairs.
func (p *Peaks) double() {
	p.interval *= 2
	for i := range p.peaks {
		o := p.peaks[i]
		p.peaks[i] = peak{}
		p.peaks[i/2].add(o)
	}
}

// All returns the peaks of the intervals that had an event, in order of time.
func (p *Peaks) All() (all []Peak) {
	for _, o := range p.peaks {
		if o.seen {
			all = append(all, o.Peak)
		}
	}
	return all
}
