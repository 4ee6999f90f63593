package bench

import "mlpool/internal/stats"

// A Row is the result of one measurement. Times are in nanoseconds for each operation; values that
// were not measured are NaN.
type Row struct {
	Scenario, Case, Allocator string

	Unit           string // of operations: a pair, a call, a round
	Ops            int64
	Runs           int
	Mean           float64
	P50, P99, P999 float64
	PerSecond      float64 // operations of all threads
	PeakLive       int64   // bytes, as requested
	PeakReserved   int64   // bytes, since the allocator was opened
	Failed         int64   // requests that found no memory
	DriverCalls    float64 // for each operation
	GoAllocs       float64 // for each operation
	Cut            bool    // the time limit ended some run early
	HostWaits      float64 // for queued work, for each operation
	Least, Most    float64 // Mean of the fastest run, and of the slowest
	Ranks          int64   // 0: it does not depend on them

	Created, Stitched int64 // chunks, and mappings of them in stitches, in the first run; not in the CSV
}

// Ratio returns reserved bytes for each live byte.
func (r *Row) Ratio() float64 { return float64(r.PeakReserved) / float64(r.PeakLive) }

// measured returns the values that a run measures; the others are the same in every run, or nearly.
func (r *Row) measured() []*float64 {
	return []*float64{&r.Mean, &r.P50, &r.P99, &r.P999, &r.PerSecond, &r.DriverCalls, &r.GoAllocs, &r.HostWaits}
}

// Median combines the rows of several runs of one case and allocator.
func Median(runs []Row) Row {
	m := runs[0]
	m.Runs, m.Least, m.Most = len(runs), m.Mean, m.Mean
	for i, median := range m.measured() {
		var values []float64
		for j := range runs {
			values = append(values, *runs[j].measured()[i])
		}
		*median = stats.Median(values)
	}
	for _, r := range runs {
		m.Least, m.Most = min(m.Least, r.Mean), max(m.Most, r.Mean)
		m.PeakLive = max(m.PeakLive, r.PeakLive)
		m.PeakReserved = max(m.PeakReserved, r.PeakReserved)
		m.Failed = max(m.Failed, r.Failed)
		m.Cut = m.Cut || r.Cut
	}
	return m
}
