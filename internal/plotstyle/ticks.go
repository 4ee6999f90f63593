package plotstyle

import (
	"math"
	"strconv"
)

// A Tick marks a value of an axis. It has no label if it is between two that have one.
type Tick struct {
	Value float64
	Label string
}

// Ticks returns at most eight ticks at round numbers, no closer than closest, or none of a range that is empty,
// infinite, or too short for float64. A nil text writes a number with the digits that distinguish it from the next.
func Ticks(low, high, closest float64, text func(float64) string) []Tick {
	const most = 8
	step := math.Pow(10, math.Floor(math.Log10((high-low)/(most-1))))
	if !(step > 0) || math.IsInf(step, 1) {
		return nil
	}
	for i := 0; (high-low)/step > most-1 || step < closest; i++ {
		step *= [...]float64{2, 2.5, 2}[i%3] // 1, 2, 5, 10
	}
	if text == nil {
		decimals := max(0, -int(math.Floor(math.Log10(step))))
		text = func(v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
	}
	var ticks []Tick
	first := math.Ceil(low / step)
	for i := range most {
		v := (first+float64(i))*step + 0 // not −0
		if !(v <= high) {
			break
		}
		ticks = append(ticks, Tick{Value: v, Label: text(v)})
	}
	return ticks
}

// LogTicks returns ticks with at most about n labels: at 1, 2 and 5 times the powers of ten or, if those are many, at
// powers, with marks without labels in between. For a range too short for that it returns Ticks.
func LogTicks(low, high float64, n int, text func(float64) string) []Tick {
	if !(low > 0 && high/low >= 4) || math.IsInf(high, 1) {
		return Ticks(low, high, (high-low)/float64(n), text)
	}
	if text == nil {
		text = func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	}
	first, last := math.Ceil(math.Log10(low)-1e-9), math.Floor(math.Log10(high)+1e-9)
	every := math.Ceil((last - first + 1) / float64(n))
	fine := 3*int(last-first) < n
	var ticks []Tick
	for e := first - 1; e <= last; e++ {
		for digit := 1; digit <= 9; digit++ {
			t := Tick{Value: float64(digit) * math.Pow(10, e)}
			if t.Value < low*(1-1e-9) || t.Value > high*(1+1e-9) || every > 1 && digit > 1 {
				continue
			}
			if digit == 1 && math.Mod(e-first, every) == 0 || fine && (digit == 2 || digit == 5) {
				t.Label = text(t.Value)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
