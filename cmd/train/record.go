package main

import (
	"fmt"
	"math"
	"slices"

	"mlpool/cmd/train/internal/rundir"
)

// whole are the epochs that were not interrupted.
func whole(records []rundir.Record) []rundir.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r rundir.Record) bool { return r.Interrupted })
}

// steady are the records that are not of warm-up; with no others, these.
func steady(records []rundir.Record) []rundir.Record {
	rest := slices.DeleteFunc(slices.Clone(records), func(r rundir.Record) bool { return r.Warmup })
	if len(rest) == 0 {
		return records
	}
	return rest
}

// quantile returns the value of f that a share q of the records, at least one, do
// not exceed; between two of them it is in proportion.
func quantile(records []rundir.Record, q float64, f func(rundir.Record) float64) float64 {
	values := make([]float64, len(records))
	for i, r := range records {
		values[i] = f(r)
	}
	slices.Sort(values)
	below, part := math.Modf(q * float64(len(values)-1))
	v := values[int(below)]
	if part > 0 {
		v += part * (values[int(below)+1] - v)
	}
	return v
}

// median is the middle value of f, or the mean of the two in the middle.
func median(records []rundir.Record, f func(rundir.Record) float64) float64 {
	return quantile(records, 0.5, f)
}

// agreement says whether the losses of as many steps are the same, bit for bit.
func agreement(a, b []float32) string {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Sprintf("differ from step %d on", i+1)
		}
	}
	return "identical"
}
