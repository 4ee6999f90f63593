package draw

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"mlpool/tools/allocbench/internal/bench"
)

// A column of the CSV, and its field of a row.
type column struct {
	name string
	get  func(*bench.Row) string
	set  func(*bench.Row, string) error
}

func textColumn(name string, field func(*bench.Row) *string) column {
	return column{name,
		func(r *bench.Row) string { return *field(r) },
		func(r *bench.Row, s string) error { *field(r) = s; return nil }}
}

func intColumn(name string, field func(*bench.Row) *int64) column {
	return column{name,
		func(r *bench.Row) string { return strconv.FormatInt(*field(r), 10) },
		func(r *bench.Row, s string) (err error) { *field(r), err = strconv.ParseInt(s, 10, 64); return err }}
}

// positiveColumn writes 0 as an empty field: an allocator that hands out memory has reserved
// some, so it is not known how much. Likewise the ranks, of which most scenarios have none.
func positiveColumn(name string, field func(*bench.Row) *int64) column {
	c := intColumn(name, field)
	return column{name,
		func(r *bench.Row) string {
			if *field(r) == 0 {
				return ""
			}
			return c.get(r)
		},
		func(r *bench.Row, s string) error { return c.set(r, cmp.Or(s, "0")) }}
}

// floatColumn writes a value that was not measured as an empty field.
func floatColumn(name string, field func(*bench.Row) *float64) column {
	return column{name,
		func(r *bench.Row) string {
			if math.IsNaN(*field(r)) {
				return ""
			}
			return strconv.FormatFloat(*field(r), 'g', 6, 64)
		},
		func(r *bench.Row, s string) (err error) {
			if *field(r) = math.NaN(); s != "" {
				*field(r), err = strconv.ParseFloat(s, 64)
			}
			return err
		}}
}

// columns are the columns of the CSV. A file of an earlier version may have only the first
// leastColumns.
var columns = []column{
	textColumn("scenario", func(r *bench.Row) *string { return &r.Scenario }),
	textColumn("case", func(r *bench.Row) *string { return &r.Case }),
	textColumn("allocator", func(r *bench.Row) *string { return &r.Allocator }),
	textColumn("unit", func(r *bench.Row) *string { return &r.Unit }),
	{"runs",
		func(r *bench.Row) string { return strconv.Itoa(r.Runs) },
		func(r *bench.Row, s string) (err error) { r.Runs, err = strconv.Atoi(s); return err }},
	intColumn("ops", func(r *bench.Row) *int64 { return &r.Ops }),
	floatColumn("mean_ns", func(r *bench.Row) *float64 { return &r.Mean }),
	floatColumn("p50_ns", func(r *bench.Row) *float64 { return &r.P50 }),
	floatColumn("p99_ns", func(r *bench.Row) *float64 { return &r.P99 }),
	floatColumn("p999_ns", func(r *bench.Row) *float64 { return &r.P999 }),
	floatColumn("per_second", func(r *bench.Row) *float64 { return &r.PerSecond }),
	intColumn("peak_live_bytes", func(r *bench.Row) *int64 { return &r.PeakLive }),
	positiveColumn("peak_reserved_bytes", func(r *bench.Row) *int64 { return &r.PeakReserved }),
	intColumn("out_of_memory", func(r *bench.Row) *int64 { return &r.Failed }),
	floatColumn("driver_calls_per_op", func(r *bench.Row) *float64 { return &r.DriverCalls }),
	floatColumn("go_allocs_per_op", func(r *bench.Row) *float64 { return &r.GoAllocs }),
	{"cut",
		func(r *bench.Row) string { return strconv.FormatBool(r.Cut) },
		func(r *bench.Row, s string) (err error) { r.Cut, err = strconv.ParseBool(s); return err }},
	floatColumn("host_waits_per_op", func(r *bench.Row) *float64 { return &r.HostWaits }),
	floatColumn("least_ns", func(r *bench.Row) *float64 { return &r.Least }),
	floatColumn("most_ns", func(r *bench.Row) *float64 { return &r.Most }),
	positiveColumn("ranks", func(r *bench.Row) *int64 { return &r.Ranks }),
}

const leastColumns = 17

// WriteCSV writes notes as comments, a header, and a line for each row.
func WriteCSV(w io.Writer, notes []string, rows []bench.Row) error {
	for _, note := range notes {
		if _, err := fmt.Fprintf(w, "# %s\n", strings.ReplaceAll(note, "\n", " ")); err != nil {
			return err
		}
	}
	records := make([][]string, len(rows)+1)
	for _, c := range columns {
		records[0] = append(records[0], c.name)
		for i := range rows {
			records[i+1] = append(records[i+1], c.get(&rows[i]))
		}
	}
	return csv.NewWriter(w).WriteAll(records)
}

// AsWritten returns rows as ReadFigures would read them: floats are rounded.
func AsWritten(rows []bench.Row) ([]bench.Row, error) {
	var text strings.Builder
	if err := WriteCSV(&text, nil, rows); err != nil {
		return nil, err
	}
	_, kept, err := readCSV(text.String())
	return kept, err
}

// readCSV reads what WriteCSV wrote.
func readCSV(text string) (notes []string, rows []bench.Row, err error) {
	for line := range strings.Lines(text) {
		if note, ok := strings.CutPrefix(line, "#"); ok {
			notes = append(notes, strings.TrimSpace(note))
		}
	}
	in := csv.NewReader(strings.NewReader(text))
	in.Comment = '#'
	records, err := in.ReadAll()
	if err != nil {
		return nil, nil, err
	}
	if len(records) == 0 {
		return nil, nil, errors.New("is empty")
	}
	n := len(records[0])
	if n < leastColumns || n > len(columns) {
		return nil, nil, fmt.Errorf("has %d columns, not %d", n, len(columns))
	}
	for i, record := range records {
		r := bench.Row{HostWaits: math.NaN(), Least: math.NaN(), Most: math.NaN()}
		for j, c := range columns[:n] {
			if i == 0 {
				if record[j] != c.name {
					return nil, nil, fmt.Errorf("column %d is %q, not %q", j+1, record[j], c.name)
				}
				continue
			}
			if err := c.set(&r, record[j]); err != nil {
				return nil, nil, fmt.Errorf("row %d: %s: %w", i, c.name, err)
			}
		}
		if i > 0 {
			rows = append(rows, r)
		}
	}
	return notes, rows, nil
}

// ReadFigures reads the file at path.
func ReadFigures(path string) (notes []string, rows []bench.Row, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if notes, rows, err = readCSV(string(text)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return notes, rows, nil
}
