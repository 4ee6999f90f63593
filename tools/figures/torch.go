package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"mlpool/internal/chart"
	"mlpool/internal/plotstyle"
)

// The files of tools/torch_memory.py.
const (
	torchName  = "torch_memory"
	torchFile  = torchName + ".csv"
	torchSteps = torchName + "_steps.csv"
)

// torchAllocators lists the allocators of PyTorch's jobs.
var torchAllocators = []struct{ name, title string }{
	{"native", "PyTorch's own"}, {"expandable", "`expandable_segments`"}, {"async", "`cudaMallocAsync`"},
	{"mlpool", "the pool"},
}

var torchJobs = map[string]string{
	"cnn": "CNN", "unet": "U-Net", "graph": "graph network", "small": "small transformer", "streams": "four streams",
	"llama": "Llama fine-tuning", "lora": "LoRA", "generate": "Llama, growing cache", "resnet": "ResNet-50",
}

// torchOrigin describes where the figures of a part come from.
func torchOrigin(s *source, part string) string {
	notes := slices.DeleteFunc(s.notes(torchFile), func(note string) bool { return !strings.HasPrefix(note, part+" of ") })
	return plotstyle.Origin(notes, "", true)
}

func torchKey(part, job, allocator, measure string) key {
	return key{"part", part, "job", job, "allocator", allocator, "measure", measure}
}

// torchNumber returns the median of a measure, or NaN.
func torchNumber(s *source, part, job, allocator, measure string) float64 {
	return s.number(torchFile, "median", torchKey(part, job, allocator, measure))
}

// torchRanked writes the median of a measure and, in brackets, its ratio to the pool's if the interval of the ratio
// excludes 1. Of a difference whose interval has 0 it writes only where the interval ends.
func torchRanked(s *source, part, job, allocator, measure string, n int) string {
	text := digits(torchNumber(s, part, job, allocator, measure), n)
	for _, r := range s.records(torchFile) {
		if !torchKey(part, job, allocator, measure).of(r) || r["low"] == "" {
			continue
		}
		of := func(column string) float64 { return s.float(torchFile, column, r, job) }
		if of("low") <= 0 {
			return "below " + digits(of("high"), 2)
		}
		if r["ratio_low"] != "" && (of("ratio_low") > 1 || of("ratio_high") < 1) {
			text += fmt.Sprintf(" (%.3f)", of("ratio"))
		}
	}
	return text
}

// jobsOf lists the jobs of a part that were measured.
func jobsOf(s *source, part string) []string {
	jobs := s.values(torchFile, "job", key{"part", part})
	if len(jobs) == 0 {
		s.fail("%s: no record of %s", torchFile, part)
	}
	return jobs
}

// jobName returns the name of a job in documents.
func jobName(job string) string { return cmp.Or(torchJobs[job], job) }

// torchTable is a table with a row for each job and a column for each allocator that has a figure.
func torchTable(head string, jobs []string, cell func(job, allocator string) string) string {
	rows := [][]string{{head}}
	for _, job := range jobs {
		rows = append(rows, []string{jobName(job)})
	}
	for _, a := range torchAllocators {
		column := []string{a.title}
		for _, job := range jobs {
			column = append(column, cell(job, a.name))
		}
		if slices.ContainsFunc(column[1:], func(text string) bool { return text != digits(math.NaN(), 1) }) {
			for i := range rows {
				rows[i] = append(rows[i], column[i])
			}
		}
	}
	return markdown(rows...)
}

// torchSummary is the picture and the table of README.md.
func torchSummary(s *source) string {
	table := torchTable("MiB reserved", jobsOf(s, "memory"), func(job, allocator string) string {
		return digits(torchNumber(s, "memory", job, allocator, "reserved_mib"), 3)
	})
	return "![lines: MiB that PyTorch reserves over the steps of a training, with its own allocator and with the pool, and MiB " +
		"allocated](assets/" + torchName + ".png)\n\n" + table + "\n" + torchTimes(s) + "\nMedians; " + torchOrigin(s, "memory") + ".\n"
}

// torchTimes compares the time of a step on the pool with that on PyTorch's own allocator.
func torchTimes(s *source) string {
	var sure, different []string
	jobs := jobsOf(s, "memory")
	var low, high, least, most = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1) // of the ratios of the other jobs, and of their intervals
	for _, job := range jobs {
		ratio := func(column string) float64 { // of the other's time to the pool's
			return s.needed(torchFile, column, torchKey("memory", job, "native", "step_ms"))
		}
		if ratio("ratio_low") > 1 || ratio("ratio_high") < 1 {
			sure = append(sure, fmt.Sprintf("%.2f (%.2f to %.2f) times as long for job %s",
				1/ratio("ratio"), 1/ratio("ratio_high"), 1/ratio("ratio_low"), jobName(job)))
		} else {
			low, high = min(low, 1/ratio("ratio")), max(high, 1/ratio("ratio"))
			least, most = min(least, 1/ratio("ratio_high")), max(most, 1/ratio("ratio_low"))
		}
		for _, a := range torchAllocators {
			if torchNumber(s, "memory", job, a.name, "losses_equal") == 0 && !slices.Contains(different, job) {
				different = append(different, job)
			}
		}
	}
	losses := "The losses are the same, bit for bit."
	if len(different) > 0 {
		losses = "The losses of " + strings.Join(different, ", ") + " differ between allocators; all others are the same, bit for bit."
	}
	var steps string
	if len(sure) > 0 {
		steps = "On the pool a step takes " + strings.Join(sure, ",\n") + " as on PyTorch's own allocator,\nwith 95 % intervals. "
	}
	if n := len(jobs) - len(sure); n > 0 {
		steps += fmt.Sprintf("On the pool the steps of %d jobs take %.2f to %.2f times as long as on PyTorch's own allocator,\n"+
			"by the median. Each 95 %% interval includes 1; together they reach from %.2f to %.2f. ", n, low, high, least, most)
	}
	return steps + losses + "\n"
}

// torchMemory has the tables of memory and time.
func torchMemory(s *source) string {
	jobs := jobsOf(s, "memory")
	memory := torchTable("MiB reserved; allocated; in use on the device", jobs, func(job, allocator string) string {
		text := torchRanked(s, "memory", job, allocator, "reserved_mib", 4)
		for _, measure := range []string{"allocated_mib", "device_mib"} {
			text += "; " + digits(torchNumber(s, "memory", job, allocator, measure), 4)
		}
		return text
	})
	time := torchTable("ms a step", jobs, func(job, allocator string) string {
		return torchRanked(s, "memory", job, allocator, "step_ms", 3)
	})
	return memory + "\n" + time + "\nMedians; " + torchOrigin(s, "memory") + ".\n"
}

// torchLimits is the table of the least memory with which a job finishes.
func torchLimits(s *source) string {
	return torchTable("MiB", jobsOf(s, "limits"), func(job, allocator string) string {
		return torchRanked(s, "limits", job, allocator, "limit_mib", 4)
	}) + "\n" + torchOrigin(s, "limits") + ".\n"
}

// torchMore is the tables of the parts that the file may lack.
func torchMore(s *source) string {
	var b strings.Builder
	for _, p := range []struct {
		part, about string
		measures    [][2]string // each with the head of its table
	}{
		{"first", "The first two steps of each job, once its kernels are loaded and all memory is given back:",
			[][2]string{{"steps_ms", "ms, both steps"}, {"reserved_mib", "MiB reserved, the peak"}}},
		{"startup", "From before the first CUDA call to after the first allocation, in new processes; for the pool with `import mlpool` and\n`install()`:",
			[][2]string{{"start_ms", "ms"}}},
		{"host", "The host's time for an allocation and its free, less that for a tensor without memory:", [][2]string{{"us", "µs"}}},
		{"copies", "Copies of eight new tensors to another GPU and back, from the third step on:", [][2]string{{"step_ms", "ms"}}},
	} {
		jobs := s.values(torchFile, "job", key{"part", p.part})
		if len(jobs) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s\n\n", p.about)
		for _, m := range p.measures {
			fmt.Fprintln(&b, torchTable(m[1], jobs, func(job, allocator string) string {
				return torchRanked(s, p.part, job, allocator, m[0], 3)
			}))
		}
		fmt.Fprintf(&b, "Medians; %s.\n\n", torchOrigin(s, p.part))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// drawTorch draws the memory of a training over its steps.
func drawTorch(w io.Writer, s *source) error {
	p := &chart.Plot{X: chart.Axis{Low: 1, Closest: 1, Label: "step"}, Y: chart.Axis{Grid: true, Label: "MiB"}}
	for _, c := range []struct {
		name, allocator, column string
		style                   chart.Series
	}{
		{"reserved, PyTorch's own allocator", "native", "reserved_mib", chart.Curve(plotstyle.Allocator("torch"))},
		{"reserved, the pool", "mlpool", "reserved_mib", chart.Curve(plotstyle.Allocator("tlsf"))},
		{"allocated, the peak of each step", "mlpool", "allocated_mib", chart.Series{Color: chart.Muted, Width: 1}},
	} {
		line := c.style
		line.Name = c.name
		for _, r := range s.records(torchSteps) {
			if r["allocator"] == c.allocator {
				of := func(column string) float64 { return s.float(torchSteps, column, r, c.allocator) }
				at := chart.Point{X: of("step"), Y: of(c.column)}
				line.Points = append(line.Points, at)
				p.X.High, p.Y.High = max(p.X.High, at.X), max(p.Y.High, 1.05*at.Y)
			}
		}
		if len(line.Points) == 0 {
			s.fail("%s: no record of allocator %s", torchSteps, c.allocator)
			return s.err
		}
		p.Series = append(p.Series, line)
	}
	if s.err != nil {
		return s.err
	}
	return chart.Picture{
		Title:    "Memory that PyTorch reserves for a transformer whose batch and length vary",
		Subtitle: plotstyle.Origin(s.notes(torchSteps), torchSteps, true),
		Columns:  1, Width: 670, Height: 290, Plots: []*chart.Plot{p},
	}.WritePNG(w)
}
