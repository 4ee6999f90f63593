// Package compare presents the results of runs, alone and side by side: as a table on the terminal,
// as JSON, as CSV, and as a page.
//
// All four have the same figures. A difference between allocators is of epochs that were trained in
// turns, and has an interval. If the interval includes zero or is unknown, the allocators are not
// ranked. A comparison includes only the epochs that all its runs have done.
package compare

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"

	"github.com/jszwec/csvutil"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/output"
	"mlpool/internal/stats"
)

// Results are the results of one or several runs: the JSON of -json, and of comparison.json.
type Results struct {
	// Folder is the folder of the run or of the comparison; empty: nothing is logged.
	Folder string   `json:"folder,omitempty"`
	Runs   []result `json:"runs"` // differences are from the first
}

// A result is the result of one run, with the facts of its run.json.
type result struct {
	rundir.Facts
	Folder  string   `json:"folder,omitempty"`
	Figures *figures `json:"figures,omitempty"` // nil: there is no complete epoch
	// Difference compares the times of epochs with those of the first run, which has none.
	Difference *difference `json:"difference,omitempty"`
	// Losses reports whether the losses of the training steps are those of the first run, bit for bit:
	// "identical" or "differ from step 2 on". The first run has none.
	Losses string `json:"losses,omitempty"`

	// Held is the memory that is allocated when the run ends, by tag.
	Held []allocator.TagBytes `json:"held_by_tag,omitempty"`

	paired stats.Difference // of which Difference is the JSON
}

// Figures describe the epochs after the first, which includes costs that occur once, or the first
// if there is no other. In a comparison they describe the epochs that all runs have done. Times and
// counts are medians.
type figures struct {
	Epochs int `json:"epochs"` // that the figures describe

	MedianMS  float64 `json:"median_ms"` // of an epoch with its validation
	FastestMS float64 `json:"fastest_ms"`
	P25MS     float64 `json:"p25_ms"`
	P75MS     float64 `json:"p75_ms"`
	SlowestMS float64 `json:"slowest_ms"`
	ValMS     float64 `json:"val_ms"`

	// With several ranks: see rundir.Record. They are nil with one rank, and if no step was timed.
	AllReduceUS *float64 `json:"all_reduce_us,omitempty"`
	Hidden      *float64 `json:"all_reduce_hidden,omitempty"` // 0 to 1

	AllocatorMS        float64 `json:"allocator_ms"` // of an epoch; an estimate: see allocator.Timed
	AllocatorUSPerStep float64 `json:"allocator_us_per_step"`
	AllocsPerStep      float64 `json:"allocs_per_step"`
	DriverCallsPerStep float64 `json:"driver_calls_per_step"`
	HostWaitsPerStep   float64 `json:"host_waits_per_step"` // in the allocator, for queued work
	PeakAllocated      int64   `json:"peak_allocated_bytes"`
	PeakReserved       int64   `json:"peak_reserved_bytes"`

	ValLoss    rundir.Nats `json:"val_loss_nats"` // after the last of the epochs
	ValAcc     float64     `json:"val_acc"`       // likewise, 0 to 1
	BestValAcc float64     `json:"best_val_acc"`  // of all epochs, 0 to 1

	Outliers int `json:"outliers"` // epochs far from the others: see stats.Outliers
}

// A difference says how much longer an epoch takes than the same epoch of the first run, in
// percent: see stats.Compare.
type difference struct {
	Pairs int `json:"pairs"` // of epochs
	// Low and High are the 95 % interval of Percent. WithinNoise says whether it includes 0. All are
	// nil if there are too few epochs for an interval.
	Percent     *float64 `json:"percent"`
	Low         *float64 `json:"low_percent"`
	High        *float64 `json:"high_percent"`
	WithinNoise *bool    `json:"within_noise"`
}

// leastEpochs is the number of epochs that a comparison needs for an interval. The first does not
// count.
const leastEpochs = stats.LeastPairs + 1

// newFigures returns the figures of complete epochs, at least one.
func newFigures(all []rundir.Record) *figures {
	epochs := steady(all)
	median := func(records []rundir.Record, f func(rundir.Record) float64) float64 {
		return stats.Median(values(records, f))
	}
	perStep := func(f func(rundir.Record) float64) float64 {
		return median(epochs, func(r rundir.Record) float64 { return f(r) / float64(r.Steps-r.ResumedAfter) })
	}
	allocatorMS := func(r rundir.Record) float64 { return r.AllocatorMS }
	ms := func(q float64) float64 { return stats.Quantile(epochMS(epochs), q) }
	at := all[len(all)-1]
	f := &figures{
		Epochs:   len(epochs),
		MedianMS: ms(0.5), FastestMS: ms(0), P25MS: ms(0.25), P75MS: ms(0.75), SlowestMS: ms(1),
		ValMS:              median(epochs, func(r rundir.Record) float64 { return r.ValMS }),
		AllocatorMS:        median(epochs, allocatorMS),
		AllocatorUSPerStep: 1000 * perStep(allocatorMS),
		AllocsPerStep:      perStep(func(r rundir.Record) float64 { return float64(r.Allocs) }),
		DriverCallsPerStep: perStep(func(r rundir.Record) float64 { return float64(r.DriverCalls) }),
		HostWaitsPerStep:   perStep(func(r rundir.Record) float64 { return float64(r.HostWaits) }),
		PeakAllocated:      at.PeakAllocated,
		PeakReserved:       at.PeakReserved,
		ValLoss:            at.ValLoss,
		ValAcc:             at.ValAcc,
		BestValAcc:         slices.Max(values(all, func(r rundir.Record) float64 { return r.ValAcc })),
		Outliers:           len(stats.Outliers(epochMS(epochs))),
	}
	timed := slices.DeleteFunc(slices.Clone(epochs), func(r rundir.Record) bool { return r.AllReduceUS == 0 })
	if len(timed) > 0 {
		allReduce, hidden := median(timed, func(r rundir.Record) float64 { return r.AllReduceUS }), median(timed, Hidden)
		f.AllReduceUS, f.Hidden = &allReduce, &hidden
	}
	return f
}

// epochMS returns the time of each epoch.
func epochMS(records []rundir.Record) []float64 { return values(records, rundir.Record.TotalMS) }

// compared returns the complete epochs of each run, and the number of steps, that all runs have
// done.
func compared(runs []Run) (records [][]rundir.Record, steps int) {
	epochs := len(Whole(runs[0].Records))
	steps = len(runs[0].Losses)
	for _, r := range runs {
		records = append(records, Whole(r.Records))
		epochs = min(epochs, len(records[len(records)-1]))
		steps = min(steps, len(r.Losses))
	}
	for i := range records {
		records[i] = records[i][:epochs]
	}
	return records, steps
}

// NewResults returns the results of runs in the folder dir; empty: nothing is logged.
func NewResults(dir string, runs []Run) Results {
	all := Results{Folder: dir}
	records, steps := compared(runs)
	for i, r := range runs {
		one := result{Facts: r.Facts, Folder: r.Folder, Held: r.Held}
		if len(records[i]) > 0 {
			one.Figures = newFigures(records[i])
		}
		if i > 0 && one.Figures != nil {
			one.paired = stats.Compare(epochMS(steady(records[0])), epochMS(steady(records[i])))
			one.Difference = newDifference(one.paired)
			one.Losses = agreement(r.Losses[:steps], runs[0].Losses[:steps])
		}
		all.Runs = append(all.Runs, one)
	}
	return all
}

func newDifference(d stats.Difference) *difference {
	out := &difference{Pairs: d.Pairs}
	if d.Known() {
		noise := d.WithinNoise()
		out.Percent, out.Low, out.High, out.WithinNoise = &d.Percent, &d.Low, &d.High, &noise
	}
	return out
}

// WriteCSV writes the results to the file that -csv names.
func (all Results) WriteCSV(path string) error {
	text, err := all.CSV()
	if err == nil {
		err = output.WriteFile(path, text)
	}
	if err != nil {
		return fmt.Errorf("-csv: %w", err)
	}
	return nil
}

// CSV returns a table with a row for each run, with the names of the JSON. Unknown values are empty
// cells.
func (all Results) CSV() ([]byte, error) {
	type row struct {
		Allocator  string        `json:"allocator"`
		Segments   string        `json:"segments"`
		Status     rundir.Status `json:"status"`
		Figures    *figures      `json:",inline"`
		Difference *difference   `json:"difference_,inline"`
		Losses     string        `json:"losses"`
		Folder     string        `json:"folder"`
	}
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	table := csvutil.NewEncoder(w)
	table.Tag = "json"
	for _, r := range all.Runs {
		if err := table.Encode(row{r.Name, r.Segments, r.Status, r.Figures, r.Difference, r.Losses, r.Folder}); err != nil {
			return nil, err
		}
	}
	w.Flush()
	return text.Bytes(), w.Error()
}
