package backend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/shirou/gopsutil/v4/mem"

	"mlpool/allocator"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/text"
	"mlpool/kernels/device"
)

// EvalBatchSize is the smallest batch of a validation, which keeps no gradients: it fills a GPU
// without raising the peak of memory much.
const EvalBatchSize = 2500

// A need is memory that a run cannot do without.
type need struct {
	key   string // of the config, that causes it
	what  string // what it is for
	Bytes int64
}

// modelBytes returns the bytes of a model's weights, and a lower bound of a step's outputs: in
// training each layer's output and its gradient, in validation the outputs of one rank, whose
// batches are larger.
func modelBytes(cfg configs.Config, set data.Dataset, ranks int) (weights, outputs int64) {
	width, layers := int64(cfg.Model.FeatDim), int64(cfg.Model.NumLayers)
	weights = 4 * width * (int64(set.Train.Features()) + (layers-1)*width + data.Classes)
	rows := max(2*cfg.Train.Bsz, min(max(cfg.Train.Bsz, EvalBatchSize), (set.Test.Len()+ranks-1)/ranks))
	return weights, valueBytes(cfg) * width * layers * int64(rows)
}

// valueBytes returns the bytes of an element of an output.
func valueBytes(cfg configs.Config) int64 {
	if inBF16(cfg) {
		return int64(device.BF16.Size())
	}
	return int64(device.Float32.Size())
}

// tableBytes returns the bytes of the data set on a device: images, labels and row indices, and for
// each row its loss and whether its prediction is correct.
func tableBytes(set data.Dataset) int64 {
	return int64(set.Train.Len()+set.Test.Len()) * (int64(set.Train.Features()) + 1 + 4 + 8)
}

// DeviceNeed returns the least device memory of a run on the given number of ranks. mallocPools is
// the number of pools with malloc segments.
func DeviceNeed(cfg configs.Config, set data.Dataset, among []Subject, mallocPools, ranks int) need {
	master, outputs := modelBytes(cfg, set, ranks)
	weights := master
	if inBF16(cfg) {
		weights += master / 4 * valueBytes(cfg) // their rounded copy
	}
	if ranks > 1 {
		weights += master + weights // the buckets: updates, and the weights again
	}
	var pools int64
	for _, c := range among {
		if c.HasPool() {
			pools++
		}
	}
	return most([]need{
		{
			"model.feat_dim", fmt.Sprintf("%s of %d", text.Count(cfg.Model.NumLayers, "hidden layer"), cfg.Model.FeatDim),
			int64(len(among))*(weights+tableBytes(set)) + outputs,
		},
		{"allocator.preallocate", "what is reserved at the start", pools * int64(cfg.Allocator.Preallocate)},
		{"allocator.segment_bytes", "the first segment of a pool", int64(mallocPools) * int64(cfg.Allocator.SegmentBytes)},
	})
}

func most(needs []need) need {
	return slices.MaxFunc(needs, func(a, b need) int { return cmp.Compare(a.Bytes, b.Bytes) })
}

// hostNeeds returns the least host memory of a run, in addition to a device on the host: initial
// weights and traces.
func hostNeeds(cfg configs.Config, set data.Dataset, among []Subject) []need {
	weights, _ := modelBytes(cfg, set, 1)
	needs := []need{{"model.feat_dim", "initial weights", weights}}
	if cfg.Allocator.Trace != "" {
		events := int64(len(among)) * int64(cfg.Allocator.TraceEvents)
		needs = append(needs, need{
			"allocator.trace_events", fmt.Sprintf("a trace of %d calls", cfg.Allocator.TraceEvents),
			events * int64(unsafe.Sizeof(allocator.TraceEvent{})),
		})
	}
	return needs
}

// CheckMemory returns an error if the machine does not have the memory that a run needs. On the
// host the system would kill the process.
func (b *Backend) CheckMemory(cfg configs.Config, set data.Dataset, among []Subject, ranks int) error {
	mallocPools := 0
	for _, c := range among {
		if !c.HasPool() {
			continue
		}
		o, err := poolOptions(c.Of(cfg), b.driver())
		if err != nil {
			return err
		}
		if b.Graph || o.Segments == allocator.SegmentsMalloc { // the allocator for captures has malloc segments
			mallocPools++
		}
	}
	device, host := DeviceNeed(cfg, set, among, mallocPools, ranks), hostNeeds(cfg, set, among)
	if b.GPU {
		free, _, err := b.driver().MemInfo()
		if err != nil {
			return err
		}
		if err := enough(cfg, "device", free, device); err != nil {
			return err
		}
	} else {
		host = append(host, device)
	}
	memory, err := mem.VirtualMemory()
	if err != nil { // the system does not say how much there is
		return nil
	}
	free := int64(memory.Available)
	if swap, err := mem.SwapMemory(); err == nil {
		free += int64(swap.Free)
	}
	return enough(cfg, "host", free, host...)
}

// enough returns an error if needs exceed free bytes. place is host or device.
func enough(cfg configs.Config, place string, free int64, needs ...need) error {
	var sum int64
	for _, n := range needs {
		sum += n.Bytes
	}
	if sum <= free {
		return nil
	}
	n := most(needs)
	return cfg.Errorf(n.key, "the run needs at least %s of %s memory, most of it for %s, and %s is available", text.Bytes(sum), place, n.what, text.Bytes(free))
}

// AtLimit names the key of the limit in err, if err says that a limit was reached.
func AtLimit(cfg configs.Config, err error) error {
	var oom *allocator.OutOfMemoryError
	switch {
	case !errors.As(err, &oom) || !oom.AtLimit():
		return err
	case oom.Limit == int64(cfg.Allocator.MaxBytes):
		return cfg.Errorf("allocator.max_bytes", "%w", err)
	}
	return cfg.Errorf("allocator.max_fraction", "%w", err)
}
