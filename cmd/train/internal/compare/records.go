package compare

import (
	"fmt"
	"slices"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/report"
)

// Whole returns the epochs that were not interrupted.
func Whole(records []rundir.Record) []rundir.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r rundir.Record) bool { return r.Interrupted })
}

// steady returns the records without warm-up epochs, or all if there are only those.
func steady(records []rundir.Record) []rundir.Record {
	rest := slices.DeleteFunc(slices.Clone(records), func(r rundir.Record) bool { return r.Warmup })
	if len(rest) == 0 {
		return records
	}
	return rest
}

// values returns what f finds in each record.
func values(records []rundir.Record, f func(rundir.Record) float64) []float64 {
	found := make([]float64, len(records))
	for i, r := range records {
		found[i] = f(r)
	}
	return found
}

// agreement reports whether losses are the same, bit for bit.
func agreement(a, b []float32) string {
	if at := report.Disagreement(a, b); at >= 0 {
		return fmt.Sprintf("differ from step %d on", at+1)
	}
	return "identical"
}
