package run

import (
	"time"

	"mlpool/allocator"
	"mlpool/internal/report"
)

// mostMoments is what a picture can show.
const mostMoments = 2000

// moments are what was live and reserved over time, thinned out: of each piece of the
// time the most of both. The pieces double as the time goes on, so that any number of
// events takes the same memory.
type moments struct {
	piece time.Duration
	all   []moment
}

type moment struct {
	any            bool          // an event fell into the piece
	at             time.Duration // when most was live
	live, reserved int64
}

func newMoments() *moments { return &moments{time.Nanosecond, make([]moment, mostMoments)} }

// add adds an event of a trace.
func (m *moments) add(e allocator.TraceEvent) {
	for e.Time/m.piece >= mostMoments {
		m.halve()
	}
	m.all[e.Time/m.piece].add(moment{true, e.Time, e.Live, e.Reserved})
}

func (m *moment) add(o moment) {
	if !o.any {
		return
	}
	if !m.any || o.live > m.live {
		m.any, m.at, m.live = true, o.at, o.live
	}
	m.reserved = max(m.reserved, o.reserved)
}

// halve makes one piece of two.
func (m *moments) halve() {
	m.piece *= 2
	for i := range m.all {
		o := m.all[i]
		m.all[i] = moment{}
		m.all[i/2].add(o)
	}
}

// list returns the moments in their order.
func (m *moments) list() (list []report.Moment) {
	for _, o := range m.all {
		if o.any {
			list = append(list, report.Moment{MS: milliseconds(o.at), Live: o.live, Reserved: o.reserved})
		}
	}
	return list
}
