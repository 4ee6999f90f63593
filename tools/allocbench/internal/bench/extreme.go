package bench

import (
	"errors"
	"math"

	"mlpool/allocator"
)

// extremeCases are queries on tables of very different lengths: three columns of 8 bytes and a
// mask of 1 byte for each row, freed together.
func extremeCases(quick bool) []Case {
	n := int64(20_000)
	if quick {
		n = quickOps
	}
	rows := make([]int64, 1024)
	r := random(1)
	for i := range rows { // logarithmically uniform
		rows[i] = int64(1e5 * math.Pow(100, float64(r.next()>>11)/(1<<53)))
	}
	return []Case{{Name: "100 K - 10 M rows", Streams: 1, Run: func(b *Bench) error {
		s := b.Streams[0]
		queries := func(n int64) (int64, error) {
			var columns [4]allocator.Block
			for i := range n {
				if b.Over.Load() {
					return 8 * i, nil
				}
				count := rows[i%int64(len(rows))]
				for c := range columns {
					bytes := 8 * count
					if c == len(columns)-1 {
						bytes = count
					}
					var err error
					if columns[c], err = b.A.Alloc(bytes, s, "column"); err != nil {
						for _, column := range columns[:c] {
							err = errors.Join(err, b.A.Free(column, s))
						}
						return 8 * i, err
					}
				}
				b.Holds(25 * count)
				for _, column := range columns {
					if err := b.A.Free(column, s); err != nil {
						return 8 * i, err
					}
				}
			}
			return 8 * n, nil
		}
		if err := b.Measure("100 K - 10 M rows cold", "call", 1, func() (int64, error) { return queries(int64(len(rows))) }); err != nil {
			return err
		}
		return b.Measure("100 K - 10 M rows warm", "call", 1, func() (int64, error) { return queries(n) })
	}}}
}
