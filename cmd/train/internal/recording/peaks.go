package recording

import (
	"time"

	"mlpool/allocator"
	"mlpool/internal/report"
)

// mostPeaks is what a picture can show.
const mostPeaks = 2000

// peaks are what was live and reserved over time, thinned out: of each piece of the
// time the most of both. The pieces double as the time goes on, so that any number of
// events takes the same memory.
type peaks struct {
	piece time.Duration
	all   []peak
}

type peak struct {
	any            bool          // an event fell into the piece
	at             time.Duration // when most was live
	live, reserved int64
}

func newPeaks() *peaks { return &peaks{time.Nanosecond, make([]peak, mostPeaks)} }

// add adds an event of a trace.
func (m *peaks) add(e allocator.TraceEvent) {
	for e.Time/m.piece >= mostPeaks {
		m.halve()
	}
	m.all[e.Time/m.piece].add(peak{true, e.Time, e.Live, e.Reserved})
}

func (m *peak) add(o peak) {
	if !o.any {
		return
	}
	if !m.any || o.live > m.live {
		m.any, m.at, m.live = true, o.at, o.live
	}
	m.reserved = max(m.reserved, o.reserved)
}

// halve makes one piece of two.
func (m *peaks) halve() {
	m.piece *= 2
	for i := range m.all {
		o := m.all[i]
		m.all[i] = peak{}
		m.all[i/2].add(o)
	}
}

// list returns the peaks in their order.
func (m *peaks) list() (list []report.Moment) {
	for _, o := range m.all {
		if o.any {
			list = append(list, report.Moment{MS: float64(o.at) / float64(time.Millisecond), Live: o.live, Reserved: o.reserved})
		}
	}
	return list
}
