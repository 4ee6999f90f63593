package main

import (
	"fmt"
	"math"
	"strings"

	"mlpool/internal/plotstyle"
)

var tables = []table{
	{"headline", "README.md", headline},
	{"epochs", "README.md", epochs},
	{"torch", "README.md", torchSummary},
	{"files", "assets/README.md", fileTable},
	{"trainings", "assets/README.md", trainings},
	{peersName, "assets/README.md", peersTable},
	{"toolkits", "assets/README.md", toolkits},
	{"scaling", "assets/README.md", scalingTable},
	{"hosts", "assets/README.md", hosts},
	{"several", "assets/README.md", severalPeers},
	{"all-reduce", "assets/README.md", allReduces},
	{"torch-memory", "assets/README.md", torchMemory},
	{"torch-limits", "assets/README.md", torchLimits},
	{"torch-more", "assets/README.md", torchMore},
	{"numerics", "assets/README.md", numerics},
	{"jobs", "tools/allocbench/README.md", jobs},
	{"scenarios", "tools/allocbench/README.md", scenarios},
	{"recorded", "tools/allocbench/README.md", recorded},
	{"slack", "tools/allocbench/README.md", slack},
	{"wrappers", "tools/allocbench/README.md", wrappers},
}

// markdown writes a table; the first row is its head.
func markdown(rows ...[]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("|")
		for _, cell := range row {
			if cell != "" {
				b.WriteString(" " + cell)
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}

const bf16 = "bf16"

// A job is a training that ran on each allocator.
type job struct{ name, config, executor, precision string }

var (
	small     = "mnist.toml"
	large     = "mnist.toml with bsz = 1024"
	narrow    = "mnist.toml with feat_dim = 333 and bsz = 61"
	wide      = "mnist.toml with feat_dim = 2048"
	unfused   = "mnist.toml with fuse = false"
	kinds     = []string{"custom", "cuda", "malloc"}
	kindNames = []string{"pool", "cudaMallocAsync", "cudaMalloc"}
)

// headlines lists the jobs of README.md and of its picture.
var headlines = []job{
	{"784, 64, eager, fp32", small, "eager", "fp32"},
	{"784, 64, eager, 3xtf32", small, "eager", "3xtf32"},
	{"784, 64, graph, 3xtf32", small, "graph", "3xtf32"},
	{"784, 64, graph, bf16", small, "graph", bf16},
	{"333, 61, graph, 3xtf32", narrow, "graph", "3xtf32"},
	{"784, 1024, eager, 3xtf32", large, "eager", "3xtf32"},
	{"784, 64, eager, fp32, unfused", unfused, "eager", "fp32"},
}

const training = "training_h200.csv"

// of returns a column of the job on an allocator. It is NaN for cudaMalloc in a graph, which
// cannot be captured.
func (j job) of(s *source, kind, column string) float64 {
	if kind == "malloc" && j.executor == "graph" {
		return math.NaN()
	}
	return s.needed(training, column, key{"config", j.config, "executor", j.executor, "precision", j.precision, "allocator", kind})
}

// row returns the job's name and a cell for each allocator.
func (j job) row(cell func(kind string) string) []string {
	row := []string{j.name}
	for _, kind := range kinds {
		row = append(row, cell(kind))
	}
	return row
}

func (j job) hostRow(s *source) []string {
	return j.row(func(kind string) string { return digits(j.of(s, kind, "in_allocator_us_per_step"), 2) })
}

// headline describes the jobs whose epochs differ most.
func headline(s *source) string {
	ms := func(j job, kind string) string { return digits(j.of(s, kind, "median_ms"), 3) }
	eager, graph := headlines[1], headlines[2]
	return fmt.Sprintf("On an H200, an epoch of four hidden layers of 784 units, in batches of 64, takes %s ms in CUDA graphs on the pool, and\n"+
		"%s ms on `cudaMallocAsync`. If the host launches each kernel, it takes %s ms on the pool, and %s ms on\n"+
		"`cudaMalloc`. The losses are the same, bit for bit.\n",
		ms(graph, "custom"), ms(graph, "cuda"), ms(eager, "custom"), ms(eager, "malloc"))
}

// rankedRow returns a job's medians. If all epochs on an allocator are slower, or all are faster, than all on the pool,
// the cell has the ratio to the pool's median too.
func (j job) rankedRow(s *source) []string {
	return j.row(func(kind string) string {
		ms := j.of(s, kind, "median_ms")
		if math.IsNaN(ms) {
			return "not possible"
		}
		text := digits(ms, 3)
		if j.of(s, kind, "fastest_ms") > j.of(s, kinds[0], "slowest_ms") || j.of(s, kind, "slowest_ms") < j.of(s, kinds[0], "fastest_ms") {
			text += fmt.Sprintf(" (%.2f)", ms/j.of(s, kinds[0], "median_ms"))
		}
		return text
	})
}

func epochs(s *source) string {
	rows := [][]string{append([]string{"width, batch, how"}, kindNames...)}
	for _, j := range headlines {
		rows = append(rows, j.rankedRow(s))
	}
	host := headlines[1]
	host.name += ": µs a step in the allocator"
	memory := job{"– MiB reserved, of 100 allocated", small, "eager", "3xtf32"}
	rows = append(rows, host.hostRow(s), memory.row(func(kind string) string {
		if allocated := digits(memory.of(s, kind, "peak_allocated_mib"), 3); allocated != "100" {
			s.fail("%s: %s MiB are allocated, not 100", training, allocated)
		}
		return digits(memory.of(s, kind, "peak_reserved_mib"), 3)
	}))
	return markdown(rows...) + "\nMedians; " + plotstyle.Origin(s.notes(training), "", true) +
		". A ratio to the pool stands in brackets if the epochs of the\ntwo do not overlap. Without brackets they are not ranked.\n"
}

func trainings(s *source) string {
	rows := [][]string{{"width × batch, executor, precision", "`custom`", "`cuda`", "`malloc`"}}
	for i, j := range []job{
		{"784×64, eager, fp32", small, "eager", "fp32"},
		{"784×64, eager, 3xtf32", small, "eager", "3xtf32"},
		{"784×64, eager, tf32", small, "eager", "tf32"},
		{"784×64, eager, fp32, `fuse = false`, 26 allocations a step", unfused, "eager", "fp32"},
		{"784×64, graph, 3xtf32", small, "graph", "3xtf32"},
		{"784×64, graph, tf32", small, "graph", "tf32"},
		{"784×64, graph, bf16", small, "graph", bf16},
		{"784×64, graph, fp32, `fuse = false`", unfused, "graph", "fp32"},
		{"784×1024, eager, 3xtf32", large, "eager", "3xtf32"},
		{"333×61, eager, 3xtf32", narrow, "eager", "3xtf32"},
		{"333×61, graph, 3xtf32", narrow, "graph", "3xtf32"},
		{"2048×64, eager, 3xtf32", wide, "eager", "3xtf32"},
		{"2048×64, graph, 3xtf32", wide, "graph", "3xtf32"},
		{"2048×64, graph, tf32", wide, "graph", "tf32"},
		{"2048×64, graph, bf16", wide, "graph", bf16},
	} {
		rows = append(rows, j.row(func(kind string) string { return digits(j.of(s, kind, "median_ms"), 3) }))
		if i == 0 {
			j.name = "– in the allocator, µs a step of 9 allocations"
			rows = append(rows, j.hostRow(s))
			j.name = "– reserved / allocated, MiB, peak"
			rows = append(rows, j.row(func(kind string) string {
				return digits(j.of(s, kind, "peak_reserved_mib"), 3) + " / " + digits(j.of(s, kind, "peak_allocated_mib"), 3)
			}))
		}
	}
	return markdown(rows...)
}

func numerics(s *source) string {
	rows := [][]string{{"", "largest difference of a loss, steps 0–49", "50–99", "of the mean loss of 300 steps",
		"accuracy after 10 epochs, mean (range)", "of the best epoch, mean"}}
	for _, r := range [][2]string{{"fp32", "eager:fp32"}, {"3xtf32", "eager:3xtf32"}, {"tf32", "eager:tf32"},
		{bf16, "eager:bf16"}, {"PyTorch, fp32", "torch:fp32"}, {"PyTorch, tf32", "torch:tf32"}, {"PyTorch, bf16", "torch:bf16"}} {
		number := func(column string) float64 { return s.needed("numerics_h200.csv", column, key{"run", r[1]}) }
		small := func(column string) string {
			return strings.Replace(fmt.Sprintf("%.1e", number(column)), "e-0", "e-", 1)
		}
		percent := func(column string) string { return fmt.Sprintf("%.2f", 100*number(column)) }
		rows = append(rows, []string{r[0], small("max_diff_0_49"), small("max_diff_50_99"), small("mean_diff"),
			percent("last_acc_mean") + " % (" + percent("last_acc_min") + "–" + percent("last_acc_max") + ")", percent("best_acc_mean") + " %"})
	}
	return markdown(rows...)
}

// toolkits is the table of builds, a column for each CUDA toolkit.
func toolkits(s *source) string {
	const file = "toolkits_h200.csv"
	head := []string{"width × batch, precision"}
	var rows [][]string
	names := s.values(file, "build", nil)
	for _, name := range names {
		head = append(head, "CUDA "+name)
	}
	for _, r := range s.records(file) {
		if r["build"] != names[0] {
			continue
		}
		row := []string{fmt.Sprintf("%s×%s, %s", r["feat_dim"], r["bsz"], r["precision"])}
		for _, name := range names {
			ms := s.needed(file, "median_ms", key{"build", name, "feat_dim", r["feat_dim"], "bsz", r["bsz"], "precision", r["precision"]})
			row = append(row, digits(ms, 3))
		}
		rows = append(rows, row)
	}
	return markdown(append([][]string{head}, rows...)...)
}

const scalingFile = "scaling_h200.csv"

// scalingTable is the table of trainings on several GPUs. In the file, a line for one GPU precedes each.
func scalingTable(s *source) string {
	const longer = 6 // column of epochs with as many images on each GPU as on one alone
	rows := [][]string{{"width", "one GPU: batch", "images/s", "GPUs: batch of each", "images/s", "speedup", "with an epoch's images on each", "all-reduce, µs a step", "hidden"}}
	var one, last map[string]string
	for _, several := range s.records(scalingFile) {
		if several["ranks"] == "1" {
			one = several
			continue
		}
		name := several["feat_dim"] + ", " + several["precision"]
		if one == nil || one["feat_dim"]+", "+one["precision"] != name {
			s.fail("%s: no line of one GPU before %s on %s", scalingFile, name, several["ranks"])
			return ""
		}
		of := func(record map[string]string, column string) float64 {
			return s.float(scalingFile, column, record, name)
		}
		before, after := of(one, "images_per_s"), of(several, "images_per_s")
		speedup := digits(after/before, 3)
		if several["images"] != one["images"] {
			if last["ranks"] != several["ranks"] || last["bsz"] != several["bsz"] {
				s.fail("%s: %s on %s has %s images, and no line before it with %s", scalingFile, name, several["ranks"], several["images"], one["images"])
				return ""
			}
			rows[len(rows)-1][longer] = speedup
			continue
		}
		last = several
		rows = append(rows, []string{
			name, one["bsz"], millions(before), several["ranks"] + ": " + several["bsz"], millions(after), speedup, "–",
			digits(of(several, "all_reduce_us"), 2), fmt.Sprintf("%.0f %%", 100*of(several, "all_reduce_hidden")),
		})
	}
	return markdown(rows...)
}

func millions(v float64) string { return digits(v/1e6, 3) + " million" }
