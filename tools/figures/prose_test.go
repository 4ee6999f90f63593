package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProse finds the figures that sentences of the documents have, outside the tables, as the files of
// figures have them.
func TestProse(t *testing.T) {
	s := &source{dir: root + "/assets"}
	const reduceFile, tracesFile, fewerFile = "allreduce_h200.csv", "traces.csv", "fewer_kernels_h200.csv"
	const recordedFile, slackFile = "recorded_h200.csv", "slack_h200.csv"

	// more is what cuda or malloc adds to a step of the pool, in µs.
	more := func(kind, config string, executor string, steps float64) extent {
		var all extent
		for _, precision := range []string{"fp32", "3xtf32", "tf32"} {
			j := job{"", config, executor, precision}
			all.add(1e3 * (j.of(s, kind, "median_ms") - j.of(s, "custom", "median_ms")) / steps)
		}
		return all
	}
	// pair is what a pair takes in a training with a batch of 64 or 61, in µs.
	pair := func(kind string) (all extent) {
		for _, r := range s.file(training).records {
			if r["executor"] == "eager" && r["allocator"] == kind && r["config"] != large {
				all.add(s.float(training, "in_allocator_us_per_step", r, kind) / s.float(training, "allocations_per_step", r, kind))
			}
		}
		return all
	}
	// ratios is bytes reserved for each byte live, warm, of jobs recorded in PyTorch.
	ratios := func(allocator string, jobs ...string) (all extent) {
		for _, r := range s.file(tracesFile).records {
			if job, warm := strings.CutSuffix(r["case"], " warm"); warm && r["allocator"] == allocator && slices.Contains(jobs, job) {
				all.add(s.float(tracesFile, "peak_reserved_bytes", r, allocator) / s.float(tracesFile, "peak_live_bytes", r, allocator))
			}
		}
		return all
	}
	quiet := []string{"cache-expandable", "cnn", "inference", "transformer-expandable"}
	// cold is the time in an allocator of a job's first replay, in ms.
	cold := func(allocator string) (all extent) {
		for _, job := range append(quiet, "streams") {
			ms, _, _ := coldWarm(s, recordedFile, "replay", job, allocator)
			all.add(ms)
		}
		return all
	}
	// streams is what a call takes on eight streams, and what is reserved meanwhile.
	streams := func(format, allocator string) string {
		_, ns, ratio := coldWarm(s, slackFile, "replay", "streams", allocator)
		return fmt.Sprintf(format, ns/1e3, ratio)
	}
	var speedups, fewer extent
	var one map[string]string
	for _, r := range s.file(scalingFile).records {
		if r["ranks"] == "1" {
			one = r
		} else if r["bsz"] == "4096" {
			speedups.add(s.float(scalingFile, "images_per_s", r, "two GPUs") / s.float(scalingFile, "images_per_s", one, "one GPU"))
		}
	}
	for _, r := range s.file(fewerFile).records {
		fewer.add(100 * (s.float(fewerFile, "ratio", r, "a shape") - 1))
	}
	window := func(size string) float64 {
		return 100 * (measured(s, reduceFile, "allreduce", size, "ncclMemAlloc, window", "mean_ns")/
			measured(s, reduceFile, "allreduce", size, "cudaMalloc", "mean_ns") - 1)
	}
	// wider is how much longer an epoch 2048 wide takes on cudaMallocAsync than on the pool, in %, on tensor cores.
	wider := func(executor string) (all extent) {
		for _, precision := range []string{"3xtf32", "tf32"} {
			j := job{"", wide, executor, precision}
			all.add(100 * (j.of(s, "cuda", "median_ms")/j.of(s, "custom", "median_ms") - 1))
		}
		return all
	}
	host := func(kind string) float64 { return headlines[1].of(s, kind, "in_allocator_us_per_step") }
	epoch := func(kind string) float64 { return headlines[1].of(s, kind, "median_ms") }

	for document, sentences := range map[string][]string{
		"README.md": {
			fmt.Sprintf("%.0f µs more a step make an epoch %.0f %% longer", host("cuda")-host("custom"), 100*(epoch("cuda")/epoch("custom")-1)),
			"reserves " + ratios("tlsf", quiet...).text("%.2f") + " bytes for each byte in use on [four jobs",
			fmt.Sprintf("%.1f on one", ratios("tlsf", "streams").median()) + " whose eight streams",
			"PyTorch's own allocator reserves " + ratios("torch-expandable", append(quiet, "streams")...).text("%.2f") + ", with its option `expandable_segments`",
			cold("tlsf").text("%.0f") + " ms in the pool, and " + cold("cuda").text("%.0f") + " in `cudaMallocAsync`",
			streams("the pool takes %.1f µs a call, at %s bytes for each in use", "slack 1/8"),
			streams("`cudaMallocAsync` takes %.1f µs, at %s.", "cuda"),
			streams("with slack for a half it takes %.2f µs, at %s.", "slack 1/2"),
			"2048 wide with 64 rows, an epoch takes " + wider("graph").text("%.0f") + " % longer on tensor cores for that; " +
				fmt.Sprintf("in eager the difference is %.1f %% at most", wider("eager").high()),
			"With 4096 rows a GPU, two H200s train " + speedups.text("%.1f") + " times as many images",
		},
		"assets/README.md": {
			"takes " + pair("custom").text("%.1f") + " µs on the pool, and " + pair("cuda").text("%.1f") + " µs with cudaMallocAsync",
			"They cost " + more("cuda", small, "graph", 938).text("%.0f") + " µs a step at 784×64 and " + more("cuda", narrow, "graph", 984).text("%.0f") + " at 333×61",
			"add " + more("malloc", small, "eager", 938).text("%.0f") + " µs to a fused step at 784×64, and " + more("malloc", unfused, "eager", 938).text("%.0f") + " µs to an unfused one",
			fmt.Sprintf("%.0f %% less at the 9.9 MB of a 784 wide model, but %.0f %% more at 1 MiB", -window("9667 KiB"), window("1 MiB")),
		},
		"kernels/TUNING.md": {
			strings.Replace(fmt.Sprintf("epochs from %.0f to %+.1f %%, the median %+.1f %%", fewer.low(), fewer.high(), fewer.median()), "-", "−", 1),
		},
	} {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(strings.Fields(string(text)), " ")
		for _, sentence := range sentences {
			if !strings.Contains(all, sentence) {
				t.Errorf("%s does not say %q, as the figures do", document, sentence)
			}
		}
	}
	if s.err != nil {
		t.Error(s.err)
	}
}

// A extent is figures of which a sentence has the least and the greatest.
type extent []float64

func (v *extent) add(x float64) { *v = append(*v, x) }

func (v extent) low() float64  { return slices.Min(v) }
func (v extent) high() float64 { return slices.Max(v) }

func (v extent) median() float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v)%2 == 0 {
		return math.NaN()
	}
	return v[len(v)/2]
}

// text is the least and the greatest in a format.
func (v extent) text(format string) string {
	return fmt.Sprintf(format+" to "+format, v.low(), v.high())
}
