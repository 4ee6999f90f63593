package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/internal/plotstyle"
)

var tables = []table{
	{"headline", "README.md", headline},
	{"epochs", "README.md", epochs},
	{"files", "assets/README.md", fileTable},
	{"trainings", "assets/README.md", trainings},
	{peersName, "assets/README.md", peersTable},
	{"toolkits", "assets/README.md", toolkits},
	{"scaling", "assets/README.md", scaling},
	{"several", "assets/README.md", severalPeers},
	{"all-reduce", "assets/README.md", allReduces},
	{"numerics", "assets/README.md", numerics},
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

// A job is a training that ran on each allocator.
type job struct{ name, config, executor, precision string }

var (
	small     = "mnist.toml"
	large     = "mnist.toml with bsz = 1024"
	narrow    = "mnist.toml with feat_dim = 333 and bsz = 61"
	wide      = "mnist.toml with feat_dim = 2048"
	unfused   = "mnist.toml with fuse = false"
	kinds     = []string{"custom", "plan", "cuda", "malloc"}
	kindNames = []string{"pool", "plan", "cudaMallocAsync", "cudaMalloc"}
)

// headlines lists the jobs of README.md and of its picture.
var headlines = []job{
	{"784, 64, eager, fp32", small, "eager", "fp32"},
	{"784, 64, eager, 3xtf32", small, "eager", "3xtf32"},
	{"784, 64, graph, 3xtf32", small, "graph", "3xtf32"},
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

func (j job) epochRow(s *source) []string {
	return j.row(func(kind string) string { return digits(j.of(s, kind, "median_ms"), 3) })
}

func (j job) hostRow(s *source) []string {
	return j.row(func(kind string) string { return digits(j.of(s, kind, "in_allocator_us_per_step"), 2) })
}

// headline describes the jobs whose epochs differ most.
func headline(s *source) string {
	ms := func(j job, kind string) string { return digits(j.of(s, kind, "median_ms"), 3) }
	eager, graph := headlines[1], headlines[2]
	return fmt.Sprintf("An epoch of four hidden layers of 784 units, in batches of 64, takes %s ms on the pool and %s on `cudaMallocAsync`,\n"+
		"in CUDA graphs on an H200. Launched kernel by kernel it takes %s on the pool and %s on `cudaMalloc`. The losses are the\n"+
		"same, bit for bit.\n",
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
		". In brackets: the ratio to the pool, where every epoch is slower, or every\nepoch faster, than each on the pool; nothing ranks the others.\n"
}

func trainings(s *source) string {
	rows := [][]string{{"width × batch, executor, precision", "`custom`", "`plan`", "`cuda`", "`malloc`"}}
	for i, j := range []job{
		{"784×64, eager, fp32", small, "eager", "fp32"},
		{"784×64, eager, 3xtf32", small, "eager", "3xtf32"},
		{"784×64, eager, tf32", small, "eager", "tf32"},
		{"784×64, eager, fp32, `fuse = false`, 26 allocations a step", unfused, "eager", "fp32"},
		{"784×64, graph, 3xtf32", small, "graph", "3xtf32"},
		{"784×64, graph, tf32", small, "graph", "tf32"},
		{"784×64, graph, fp32, `fuse = false`", unfused, "graph", "fp32"},
		{"784×1024, eager, 3xtf32", large, "eager", "3xtf32"},
		{"333×61, eager, 3xtf32", narrow, "eager", "3xtf32"},
		{"333×61, graph, 3xtf32", narrow, "graph", "3xtf32"},
		{"2048×64, eager, 3xtf32", wide, "eager", "3xtf32"},
		{"2048×64, graph, 3xtf32", wide, "graph", "3xtf32"},
		{"2048×64, graph, tf32", wide, "graph", "tf32"},
	} {
		if rows = append(rows, j.epochRow(s)); i == 0 {
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
		{"PyTorch, fp32", "torch:fp32"}, {"PyTorch, tf32", "torch:tf32"}} {
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

// benched selects a record in a CSV of allocbench.
func benched(scenario, name, allocator string) key {
	return key{"scenario", scenario, "case", name, "allocator", allocator}
}

// measured returns a column of a CSV of allocbench, or NaN without a record.
func measured(s *source, file, scenario, name, allocator, column string) float64 {
	return s.number(file, column, benched(scenario, name, allocator))
}

// ratio writes the reserved bytes for each live byte.
func ratio(s *source, file, scenario, name, allocator string) string {
	v := measured(s, file, scenario, name, allocator, "peak_reserved_bytes") / measured(s, file, scenario, name, allocator, "peak_live_bytes")
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// coldWarm returns the milliseconds of a cold case, the nanoseconds of a call in a warm one,
// and the warm ratio of reserved to live bytes.
func coldWarm(s *source, file, scenario, name, allocator string) (cold, warm float64, reserved string) {
	of := func(name, column string) float64 { return s.needed(file, column, benched(scenario, name, allocator)) }
	cold = of(name+" cold", "mean_ns") * of(name+" cold", "ops") / 1e6
	return cold, of(name+" warm", "mean_ns"), ratio(s, file, scenario, name+" warm", allocator)
}

func scenarios(s *source) string {
	const file = "allocators_h200.csv"
	time := func(column, scenario string, cases ...string) func(string) string {
		return func(allocator string) string {
			var all []float64
			for _, c := range cases {
				if v := measured(s, file, scenario, c, allocator, column); !math.IsNaN(v) {
					all = append(all, v)
				}
			}
			if len(all) < len(cases) {
				return ""
			}
			return span(all...)
		}
	}
	rate := func(scenario string) func(string) string {
		return func(allocator string) string {
			return count(measured(s, file, scenario, "8 threads", allocator, "per_second"))
		}
	}
	held := func(scenario, name string) func(string) string {
		return func(allocator string) string { return ratio(s, file, scenario, name, allocator) }
	}
	sizes := []string{"64 KiB", "1 MiB", "16 MiB", "64 MiB"}
	rows := [][]string{{"", "pool (`tlsf`)", "cudaMallocAsync", "cudaMalloc"}}
	for _, r := range []struct {
		name string
		cell func(allocator string) string
	}{
		{"pair, 64 KiB to 64 MiB", time("mean_ns", "pair", sizes...)},
		{"– 99.9th percentile", time("p999_ns", "pair", sizes...)},
		{"random sizes to 64 MiB, 10 000 blocks, warm, a call", time("mean_ns", "random", "10000 <= 64 MiB warm")},
		{"churn on 32 streams, a pair", time("mean_ns", "churn", "32 streams")},
		{"8 threads with a stream each, pairs a second", rate("threads")},
		{"8 threads on one stream, pairs a second", rate("shared")},
		{"reserved / live: random, 10 000 to 64 MiB", held("random", "10000 <= 64 MiB warm")},
		{"reserved / live: churn on 32 streams", held("churn", "32 streams")},
	} {
		rows = append(rows, []string{r.name, r.cell("tlsf"), r.cell("cuda"), r.cell("malloc")})
	}
	return markdown(rows...)
}

func recorded(s *source) string {
	const file, torchFile = "recorded_h200.csv", "recorded_torch_h200.json"
	rows := [][]string{{"cold, ms; warm, ns a call; reserved / live", "pool (`tlsf`)", "`segments = \"malloc\"`", "cudaMallocAsync", "PyTorch"}}
	for _, j := range [][2]string{{"transformer", "transformer-expandable"}, {"CNN", "cnn"}, {"inference", "inference"},
		{"cache", "cache-expandable"}, {"8 streams", "streams"}} {
		row := []string{j[0]}
		for _, a := range []string{"tlsf", "malloc segments", "cuda"} {
			cold, warm, ratio := coldWarm(s, file, "replay", j[1], a)
			row = append(row, fmt.Sprintf("%.0f; %s; %s", cold, digits(warm, 2), ratio))
		}
		torch := func(column string) float64 {
			return s.needed(torchFile, column, key{"trace", j[1] + ".csv.gz", "allocator", "torch-expandable"})
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f; %s; %.2f", torch("cold_ms"), digits(torch("warm_ns_a_call"), 2), torch("ratio"))))
	}
	return markdown(rows...)
}

// slack is the table of the pool with increasing slack.
func slack(s *source) string {
	const file = "slack_h200.csv"
	pools := []string{"tlsf", "slack 1/8", "slack 1/2", "slack 1", "cuda"}
	rows := [][]string{{"cold, ms; warm, µs a call; reserved / live", "by default", "`slack = 0.125`", "`slack = 0.5`", "`slack = 1`", "cudaMallocAsync"}}
	for _, j := range []struct{ name, scenario, base string }{
		{"8 streams", "replay", "streams"},
		{"cache", "replay", "cache-expandable"},
		{"inference", "replay", "inference"},
		{"random sizes to 64 MiB, 10 000 blocks", "random", "10000 <= 64 MiB"},
	} {
		row := []string{j.name}
		for _, a := range pools {
			cold, warm, ratio := coldWarm(s, file, j.scenario, j.base, a)
			row = append(row, fmt.Sprintf("%.0f; %.2f; %s", cold, warm/1e3, ratio))
		}
		rows = append(rows, row)
	}
	row := []string{"churn on 32 streams, a pair"}
	for _, a := range pools {
		pair := s.needed(file, "mean_ns", benched("churn", "32 streams", a)) / 1e3
		row = append(row, fmt.Sprintf("–; %.2f; %s", pair, ratio(s, file, "churn", "32 streams", a)))
	}
	return markdown(append(rows, row)...)
}

func wrappers(s *source) string {
	row := []string{}
	for _, a := range []string{"tlsf", "timed", "limit", "trace"} {
		row = append(row, span(s.needed("strategies_h200.csv", "mean_ns", benched("pair", "1 MiB", a))))
	}
	return markdown([]string{"bare", "`NewTimed`, a stopwatch", "`NewLimit`", "`NewTrace`"}, row)
}

// toolkits is the table of builds, a column for each CUDA toolkit.
func toolkits(s *source) string {
	const file = "toolkits_h200.csv"
	head := []string{"width × batch, precision"}
	var names []string
	var rows [][]string
	for _, r := range s.file(file).records {
		if name := r["build"]; !slices.Contains(names, name) {
			names, head = append(names, name), append(head, "CUDA "+name)
		}
	}
	for _, r := range s.file(file).records {
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

// scaling is the table of trainings on several GPUs. In the file, a line for one GPU precedes each.
func scaling(s *source) string {
	rows := [][]string{{"width", "one GPU: batch", "images/s", "GPUs: batch of each", "images/s", "speedup", "all-reduce, µs a step", "hidden"}}
	var one map[string]string
	for _, several := range s.file(scalingFile).records {
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
		rows = append(rows, []string{
			name, one["bsz"], millions(before), several["ranks"] + ": " + several["bsz"], millions(after),
			digits(after/before, 3), digits(of(several, "all_reduce_us"), 2),
			fmt.Sprintf("%.0f %%", 100*of(several, "all_reduce_hidden")),
		})
	}
	return markdown(rows...)
}

// allReduces is the table of all-reduces, by size and by the source of the memory.
func allReduces(s *source) string {
	const file = "allreduce_h200.csv"
	memories := []string{"cudaMalloc", "cudaMallocAsync", "pool, malloc segments", "pool, virtual segments", "pool, registered segments", "ncclMemAlloc", "ncclMemAlloc, window", "pool, segments are windows"}
	rows := [][]string{append([]string{"µs"}, memories...)}
	for _, size := range []string{"4 B", "64 KiB", "1 MiB", "4 MiB", "9667 KiB", "16 MiB", "64 MiB", "256 MiB"} {
		row := []string{size}
		for _, memory := range memories {
			row = append(row, digits(s.needed(file, "mean_ns", benched("allreduce", size, memory))/1e3, 3))
		}
		rows = append(rows, row)
	}
	return markdown(rows...)
}

func millions(v float64) string { return digits(v/1e6, 3) + " million" }
