package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A source reads the files of assets. It keeps the first error.
type source struct {
	dir   string
	files map[string][]map[string]string
	err   error
}

func (s *source) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// records reads a CSV, or a JSON array of records, once. A record is a value by column.
func (s *source) records(name string) []map[string]string {
	if records, read := s.files[name]; read || s.err != nil {
		return records
	}
	path := filepath.Join(s.dir, name)
	text, err := os.ReadFile(path)
	if err != nil {
		s.fail("%w", err)
		return nil
	}
	parse := parseCSV
	if filepath.Ext(name) == ".json" {
		parse = parseJSON
	}
	records, err := parse(text)
	if err != nil {
		s.fail("%s: %w", path, err)
	}
	if s.files == nil {
		s.files = map[string][]map[string]string{}
	}
	s.files[name] = records
	return records
}

func parseCSV(text []byte) (records []map[string]string, err error) {
	in := csv.NewReader(bytes.NewReader(text))
	in.Comment = '#'
	lines, err := in.ReadAll()
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	for _, line := range lines[1:] {
		record := map[string]string{}
		for i, column := range lines[0] {
			record[column] = line[i]
		}
		records = append(records, record)
	}
	return records, nil
}

func parseJSON(text []byte) (records []map[string]string, err error) {
	var parsed []map[string]any
	err = json.Unmarshal(text, &parsed)
	for _, r := range parsed {
		record := map[string]string{}
		for column, value := range r {
			record[column] = fmt.Sprint(value)
		}
		records = append(records, record)
	}
	return records, err
}

// A key selects a record: alternating columns and values.
type key []string

func (k key) of(record map[string]string) bool {
	for i := 0; i+1 < len(k); i += 2 {
		if record[k[i]] != k[i+1] {
			return false
		}
	}
	return true
}

// values returns the values that a column has in the records that k selects, each once.
func (s *source) values(name, column string, k key) (values []string) {
	for _, record := range s.records(name) {
		if value := record[column]; k.of(record) && !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return values
}

// number returns a column of the only record that k selects, or NaN if there is none.
func (s *source) number(name, column string, k key) float64 {
	value := math.NaN()
	found := 0
	for _, record := range s.records(name) {
		if !k.of(record) {
			continue
		}
		found++
		value = s.float(name, column, record, strings.Join(k, " "))
	}
	if found > 1 {
		s.fail("%s: %d records of %s", name, found, strings.Join(k, " "))
	}
	return value
}

// float parses a column of a record; what names the record in errors.
func (s *source) float(name, column string, record map[string]string, what string) float64 {
	value, err := strconv.ParseFloat(record[column], 64)
	if err != nil {
		s.fail("%s: %s of %s is %q, not a number", name, column, what, record[column])
	}
	return value
}

// needed is like number, but the record must exist.
func (s *source) needed(name, column string, k key) float64 {
	v := s.number(name, column, k)
	if math.IsNaN(v) {
		s.fail("%s: no %s of %s", name, column, strings.Join(k, " "))
	}
	return v
}

// digits writes a number with n significant digits, or more before the point. NaN is a dash.
func digits(v float64, n int) string {
	if math.IsNaN(v) {
		return "–"
	}
	decimals := n - 1
	if v != 0 {
		decimals = 9 // more than any figure has
	}
	for decimals > 0 && math.Round(v*math.Pow10(decimals)) >= math.Pow10(n) {
		decimals--
	}
	// Round first, so that halves without an exact binary round up too.
	return strconv.FormatFloat(math.Round(v*math.Pow10(decimals))/math.Pow10(decimals), 'f', decimals, 64)
}

// span writes the least and the greatest of times in nanoseconds, in a unit for the greatest.
func span(ns ...float64) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range ns {
		low, high = min(low, v), max(high, v)
	}
	unit := "ns"
	if high >= 999.5 {
		unit, low, high = "µs", low/1e3, high/1e3
	}
	text := digits(low, 2)
	if top := digits(high, 2); top != text {
		text += "–" + top
	}
	return text + " " + unit
}

// count writes a number in thousands or millions.
func count(v float64) string {
	switch {
	case v >= 999.5e3: // which would be 1000 k
		return digits(v/1e6, 2) + " M"
	case v >= 999.5:
		return digits(v/1e3, 2) + " k"
	}
	return digits(v, 2)
}
