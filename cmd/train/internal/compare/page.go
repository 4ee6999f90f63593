package compare

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// reportPage returns the page of runs. Differences are from the first.
func reportPage(runs []Run) (report.Page, error) {
	p := report.Page{Title: reportTitle(runs)}
	settings := make([]map[string]any, len(runs))
	for i, r := range runs {
		var err error
		if settings[i], err = flattened(r.Config); err != nil {
			return p, fmt.Errorf("%s: %w", filepath.Join(r.Folder, rundir.ConfigFile), err)
		}
	}
	differ := differing(settings)
	names := uniqueNames(runs)
	p.Turns = len(runs) > 1 && sideBySide(runs)
	p.Unlike = unlike(runs, settings, differ)
	differ = slices.DeleteFunc(differ, func(key string) bool { return slices.Contains(inWords, key) })
	epochs := math.MaxInt
	for _, r := range runs {
		if n := len(Whole(r.Records)); p.Turns && n > 0 {
			epochs = min(epochs, n) // as far as all runs got
		}
	}
	for i, r := range runs {
		run := report.Run{Name: names[i], Diverged: r.diverged(), Losses: r.Losses, Recording: r.Recording}
		run.Facts = r.mainFacts(settings[i])
		for _, key := range differ {
			if value, known := settings[i][key]; known {
				run.Facts = append(run.Facts, report.Fact{Name: key, Value: fmt.Sprint(value)})
			}
		}
		if folder := r.Folder; folder != "" {
			if p.Turns {
				folder = filepath.Dir(folder)
			}
			run.Facts = append(run.Facts, report.Fact{Name: "folder", Value: folder})
		}
		all := Whole(r.Records)
		for _, e := range all[:min(len(all), epochs)] {
			run.Epochs = append(run.Epochs, report.Epoch{
				Number: e.Epoch, Warmup: e.Warmup, Steps: e.Steps - e.ResumedAfter, TrainMS: e.TrainMS, ValMS: e.ValMS,
				AllocatorMS: e.AllocatorMS, DriverCalls: e.DriverCalls,
				ValLoss: float64(e.ValLoss), ValAcc: e.ValAcc, PeakAllocated: e.PeakAllocated, PeakReserved: e.PeakReserved,
			})
		}
		p.Runs = append(p.Runs, run)
	}
	return p, nil
}

// diverged returns the epoch in which the run diverged; 0: none.
func (r Run) diverged() int {
	i := slices.IndexFunc(r.Records, func(e rundir.Record) bool { return e.Diverged > 0 })
	if i < 0 {
		return 0
	}
	return r.Records[i].Epoch
}

// sideBySide reports whether runs took turns: they are from one comparison.
func sideBySide(runs []Run) bool {
	return !slices.ContainsFunc(runs, func(r Run) bool {
		return r.Facts.Place == 0 || filepath.Dir(r.Folder) != filepath.Dir(runs[0].Folder)
	})
}

// reportTitle returns the configs of the runs, and the day of the first.
func reportTitle(runs []Run) string {
	var names []string
	for _, r := range runs {
		if !slices.Contains(names, r.Facts.Config) {
			names = append(names, r.Facts.Config)
		}
	}
	return strings.Join(names, ", ") + ", " + runs[0].Facts.Start.Format("2 January 2006")
}

// uniqueNames returns the names of the runs, and numbers those that occur twice.
func uniqueNames(runs []Run) []string {
	count, seen := map[string]int{}, map[string]int{}
	for _, r := range runs {
		count[r.Facts.Name]++
	}
	var names []string
	for _, r := range runs {
		name := r.Facts.Name
		if seen[name]++; count[name] > 1 {
			name = fmt.Sprintf("%s %d", name, seen[name])
		}
		names = append(names, name)
	}
	return names
}

// Keys of a config that mainFacts describes in words.
const (
	keyWidth   = "model.feat_dim"
	keyLayers  = "model.num_layers"
	keyBatch   = "train.bsz"
	keyRate    = "train.learning_rate"
	keyDataset = "data.dataset"
)

// inWords are keys that mainFacts describes, or that do not affect a run.
var inWords = []string{
	keyWidth, keyLayers, keyBatch, keyRate, keyDataset, "train.seed", "train.executor", "train.precision", "train.device",
	"allocator.strategy", "allocator.segments", "log.log_dir",
}

// mainFacts returns what readers want to know about every run.
func (r Run) mainFacts(settings map[string]any) (facts []report.Fact) {
	f := r.Facts
	add := func(name, format string, args ...any) {
		if value := fmt.Sprintf(format, args...); value != "" {
			facts = append(facts, report.Fact{Name: name, Value: value})
		}
	}
	if f.GPU != nil {
		add("GPU", "%s, compute capability %s, %s", f.GPU.Name, f.GPU.ComputeCapability, text.Bytes(f.GPU.Memory))
		add("driver", "%s", strings.TrimPrefix(f.GPU.Driver+", CUDA "+f.GPU.CUDADriver, ", "))
		add("kernels by", "CUDA %s", f.GPU.CUDARuntime)
	}
	add("CPU", "%s, %s", f.Machine.CPU, text.Count(f.Machine.Cores, "thread"))
	add("system", "%s", f.Machine.OS)
	add("program", "%s", cmp.Or(f.Commit, f.Version))
	if settings != nil {
		layers, _ := settings[keyLayers].(int64)
		add("model", "%s of %v", text.Count(int(layers), "hidden layer"), settings[keyWidth])
		add("batch", "%v", settings[keyBatch])
		add("learning rate", "%v", settings[keyRate])
		add("data", "%v", settings[keyDataset])
	}
	add("seed", "%d", f.Seed)
	add("precision", "%s", f.Precision)
	add("executor", "%s", f.Executor)
	add("strategy", "%s", f.Strategy)
	add("segments", "%s", f.Segments)
	add("started", "%s", f.Start.Format("2006-01-02 15:04:05 MST"))
	add("ended", "%s", strings.TrimSuffix(fmt.Sprintf("%s after %s: %s", f.Status, text.Count(f.Epochs, "epoch"), f.Error), ": "))
	return facts
}

// work are keys that change what is computed. Runs that differ in one, or in their devices, are not
// comparable.
var work = []string{keyWidth, keyLayers, keyBatch, keyDataset, "data.data_dir"}

// unlike returns the keys of work that differ, and the devices if they differ, with the values of
// all runs.
func unlike(runs []Run, settings []map[string]any, differ []string) (facts []report.Fact) {
	add := func(name string, value func(i int) string) {
		var values []string
		for i := range runs {
			if v := value(i); v != "" && !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		if len(values) > 1 {
			facts = append(facts, report.Fact{Name: name, Value: strings.Join(values, ", ")})
		}
	}
	for _, key := range work {
		if slices.Contains(differ, key) {
			add(key, func(i int) string {
				if settings[i] == nil {
					return ""
				}
				return cmp.Or(fmt.Sprint(settings[i][key]), `""`)
			})
		}
	}
	add("the device", func(i int) string {
		if gpu := runs[i].Facts.GPU; gpu != nil {
			return gpu.Name
		}
		return runs[i].Facts.Machine.CPU
	})
	add("the number of ranks", func(i int) string { return fmt.Sprint(max(1, runs[i].Facts.Ranks)) })
	return facts
}

// flattened returns the values of a config by section.key.
func flattened(config []byte) (map[string]any, error) {
	var sections map[string]map[string]any
	if _, err := toml.Decode(string(config), &sections); err != nil {
		return nil, err
	}
	flat := map[string]any{}
	for section, keys := range sections {
		for key, value := range keys {
			flat[section+"."+key] = value
		}
	}
	if len(flat) == 0 {
		return nil, nil
	}
	return flat, nil
}

// differing returns the keys whose values differ between configs.
func differing(settings []map[string]any) []string {
	keys := map[string]bool{}
	var first map[string]any
	for _, s := range settings {
		if first == nil {
			first = s
		}
		for key, value := range s {
			if fmt.Sprint(first[key]) != fmt.Sprint(value) {
				keys[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}
