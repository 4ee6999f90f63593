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
)

// EvalBatchSize is the least batch of the validation pass, which has no
// gradients to keep: large enough to fill a GPU, small enough not to raise the
// peak of memory much.
const EvalBatchSize = 2500

// need is memory that a run cannot do without.
type need struct {
	key   string // of the config, that it comes from
	what  string // it is for
	Bytes int64
}

// modelBytes returns the bytes of a model's weights, and a lower bound of a step's outputs:
// in training each layer's output and its gradient; in validation, whose batches are larger,
// one rank's outputs.
func modelBytes(cfg configs.Config, set data.Dataset, ranks int) (weights, outputs int64) {
	width, layers := int64(cfg.Model.FeatDim), int64(cfg.Model.NumLayers)
	weights = 4 * width * (int64(set.Train.Features()) + (layers-1)*width + data.Classes)
	rows := max(2*cfg.Train.Bsz, min(max(cfg.Train.Bsz, EvalBatchSize), (set.Test.Len()+ranks-1)/ranks))
	return weights, 4 * width * layers * int64(rows)
}

// tableBytes is what a device holds of the data set: images and labels, the
// indices of the rows, and of each the loss and whether its prediction is correct.
func tableBytes(set data.Dataset) int64 {
	return int64(set.Train.Len()+set.Test.Len()) * (int64(set.Train.Features()) + 1 + 4 + 8)
}

// DeviceNeed is the least memory of the device that the allocators take, of which some
// have a pool with malloc segments, on one of so many ranks.
func DeviceNeed(cfg configs.Config, set data.Dataset, among []Subject, mallocPools, ranks int) need {
	weights, outputs := modelBytes(cfg, set, ranks)
	if ranks > 1 {
		weights *= 2 // and their updates, of this rank at least
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

// hostNeeds are the least memory of the host that a run takes beside what a device
// on the host does: the initial weights, which are made there, and traces.
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

// CheckMemory returns an error if the machine cannot have what a run needs, which
// on the host would be the end of the process.
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
		if b.Graph || o.Segments == allocator.SegmentsMalloc { // what is captured has malloc segments
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
	free, known := hostMemory()
	if !known {
		return nil
	}
	return enough(cfg, "host", free, host...)
}

// enough returns an error if the needs exceed the bytes that are free in a place.
func enough(cfg configs.Config, place string, free int64, needs ...need) error {
	var sum int64
	for _, n := range needs {
		sum += n.Bytes
	}
	if sum <= free {
		return nil
	}
	n := most(needs)
	return cfg.Errorf(n.key, "the run needs at least %s of %s memory, most of it for %s, and %s is to be had", text.Bytes(sum), place, n.what, text.Bytes(free))
}

// AtLimit names the key of the limit that a run met where err says so.
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

// hostMemory returns the bytes of memory and swap that can be had, and whether the
// system says how many.
func hostMemory() (bytes int64, known bool) {
	memory, err := mem.VirtualMemory()
	if err != nil {
		return 0, false
	}
	bytes = int64(memory.Available)
	if swap, err := mem.SwapMemory(); err == nil {
		bytes += int64(swap.Free)
	}
	return bytes, true
}
