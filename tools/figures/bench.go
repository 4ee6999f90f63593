package main

import (
	"fmt"
	"math"
	"strconv"
)

// benched selects a record in a CSV of allocbench.
func benched(scenario, name, allocator string) key {
	return key{"scenario", scenario, "case", name, "allocator", allocator}
}

// ratio writes the reserved bytes for each live byte.
func ratio(s *source, file, scenario, name, allocator string) string {
	of := benched(scenario, name, allocator)
	v := s.number(file, "peak_reserved_bytes", of) / s.number(file, "peak_live_bytes", of)
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// coldWarm describes a cold case, and returns the nanoseconds of a call in the warm one and its
// ratio of reserved to live bytes. The cold time is in milliseconds, for all calls of the case. It is
// marked if the time limit cut a run, whose ops may then be fewer than the case has elsewhere.
func coldWarm(s *source, file, scenario, name, allocator string) (cold string, warm float64, reserved string) {
	calls, mark := 0.0, ""
	for _, r := range s.records(file) {
		if !(key{"scenario", scenario, "case", name + " cold"}).of(r) {
			continue
		}
		calls = max(calls, s.float(file, "ops", r, name+" cold"))
		if r["allocator"] == allocator && r["cut"] == "true" {
			mark = " (cut)"
		}
	}
	of := func(name string) float64 { return s.needed(file, "mean_ns", benched(scenario, name, allocator)) }
	cold = fmt.Sprintf("%.0f%s", of(name+" cold")*calls/1e6, mark)
	return cold, of(name + " warm"), ratio(s, file, scenario, name+" warm", allocator)
}

func scenarios(s *source) string {
	const file = "allocators_h200.csv"
	time := func(column, scenario string, cases ...string) func(string) string {
		return func(allocator string) string {
			var all []float64
			for _, c := range cases {
				if v := s.number(file, column, benched(scenario, c, allocator)); !math.IsNaN(v) {
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
			return count(s.number(file, "per_second", benched(scenario, "8 threads", allocator)))
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
			row = append(row, fmt.Sprintf("%s; %s; %s", cold, digits(warm, 2), ratio))
		}
		torch := func(column string) float64 {
			return s.needed(torchFile, column, key{"trace", j[1] + ".csv.gz", "allocator", "torch-expandable"})
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f; %s; %.2f", torch("cold_ms"), digits(torch("warm_ns_a_call"), 2), torch("ratio"))))
	}
	return markdown(rows...)
}

// jobs is the table of the jobs recorded in other programs: what each allocator reserves at the peak of one replay.
func jobs(s *source) string {
	const file = "traces.csv"
	allocators := []string{"tlsf", "slack 1/64", "torch-expandable", "torch"}
	rows := [][]string{{"reserved / live", "pool", "`slack` 1/64", "PyTorch, `expandable_segments`", "PyTorch"}}
	for _, j := range [][2]string{
		{"cnn", "CNN, image sizes drawn"}, {"detection", "detection, image sizes drawn"}, {"diffusion", "diffusion sampling"},
		{"graph", "graph network, sampled neighbours"}, {"inference", "transformer, inference"}, {"lora", "LoRA fine-tuning, bf16"},
		{"moe", "mixture of experts, a stream each"}, {"cache-expandable", "cache of random blocks"}, {"reinforcement", "reinforcement learning"},
		{"serving", "LLM inference, continuous batching"}, {"speech", "speech, lengths drawn"}, {"streams", "random blocks on 8 streams"},
		{"transformer-expandable", "transformer, training"},
	} {
		row, cells, least := []string{j[1]}, []string{}, math.Inf(1)
		for _, a := range allocators {
			cells = append(cells, ratio(s, file, "replay", j[0]+" cold", a))
			v, _ := strconv.ParseFloat(cells[len(cells)-1], 64)
			least = min(least, v)
		}
		for _, c := range cells {
			if v, _ := strconv.ParseFloat(c, 64); v == least {
				c = "**" + c + "**"
			}
			row = append(row, c)
		}
		rows = append(rows, row)
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
			row = append(row, fmt.Sprintf("%s; %.2f; %s", cold, warm/1e3, ratio))
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

// allReduces is the table of all-reduces, by size and by the source of the memory.
func allReduces(s *source) string {
	const file = "allreduce_h200.csv"
	memories := []string{"cudaMalloc", "cudaMallocAsync", "pool, malloc segments", "pool, virtual segments", "pool, registered segments", "ncclMemAlloc", "ncclMemAlloc, window", "pool, segments are windows"}
	rows := [][]string{append([]string{"µs"}, memories...)}
	for _, ranks := range s.values(file, "ranks", nil) { // numbers of GPUs; the first file had none
		for _, size := range []string{"4 B", "64 KiB", "1 MiB", "4 MiB", "9667 KiB", "16 MiB", "64 MiB", "256 MiB"} {
			row := []string{size}
			if ranks != "" {
				row[0] = ranks + " GPUs: " + size
			}
			for _, memory := range memories {
				of := append(benched("allreduce", size, memory), "ranks", ranks)
				row = append(row, digits(s.needed(file, "mean_ns", of)/1e3, 3))
			}
			rows = append(rows, row)
		}
	}
	return markdown(rows...)
}
