package report

import (
	"fmt"
	"math"
	"math/rand/v2"

	"mlpool/allocator"
)

// samplePage returns a comparison of four allocators: ten epochs, 9380 losses, a step of 20
// kernels, a pool of three segments and 200 blocks.
func samplePage() Page {
	losses := sampleLosses()
	p := Page{Title: "configs/mnist.toml, 22 November 2026", Turns: true}
	for i, a := range []struct {
		name                string
		epochMS, allocUS    float64
		live, reserved      int64
		driverCalls, launch float64
	}{
		{"custom", 35.8, 1.3, 100 << 20, 102 << 20, 0, 0.3},
		{"plan", 35.6, 0.8, 100 << 20, 102 << 20, 0, 0.3},
		{"cuda", 43.7, 11, 100 << 20, 128 << 20, 18, 0.9},
		{"malloc", 165, 138, 100 << 20, 100 << 20, 18, 7},
	} {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		run := Run{Name: a.name, Losses: losses, Facts: []Fact{
			{"device", "NVIDIA H200"}, {"driver", "CUDA 13.0"}, {"precision", "3xtf32"}, {"executor", "eager"},
			{"model", "4 hidden layers of 784"}, {"batch", "64"}, {"learning rate", "0.1"}, {"seed", "0"},
			{"data", "mnist, 60000 training and 10000 validation images"},
			{"allocator", a.name}, {"segments", []string{"virtual", "virtual and malloc", "–", "–"}[i]},
		}}
		for e := range 10 {
			ms := a.epochMS * (1 + 0.006*r.NormFloat64())
			if e == 0 {
				ms *= 1.6
			}
			run.Epochs = append(run.Epochs, Epoch{
				Number: e + 1, Warmup: e == 0, Steps: 938, TrainMS: ms * 0.96, ValMS: ms * 0.04, AllocatorMS: a.allocUS * 938 / 1000 * (1 + 0.02*r.NormFloat64()),
				Allocs: 938 * 9, DriverCalls: int64(938 * a.driverCalls), ValLoss: 0.09, ValAcc: 0.9741, PeakAllocated: a.live, PeakReserved: a.reserved,
			})
		}
		run.Memory = sampleMemory(r, a.epochMS, a.live, a.reserved)
		run.Step = sampleStep(a.allocUS, a.launch)
		if i < 2 {
			run.Peak = sampleMap(r)
		}
		p.Runs = append(p.Runs, run)
	}
	return p
}

func sampleLosses() []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	losses := make([]float32, 9380)
	for i := range losses {
		t := float64(i) / 938
		losses[i] = float32((2.2*math.Exp(-6*t) + 0.28*math.Exp(-0.35*t) + 0.004) * math.Exp(0.35*r.NormFloat64()))
	}
	return losses
}

func sampleMemory(r *rand.Rand, epochMS float64, live, reserved int64) []Peak {
	var all []Peak
	base := live * 6 / 10
	for i := range 900 {
		t := float64(i) / 900
		held := reserved
		if t < 0.02 {
			held = base + (reserved-base)*int64(i)/18
		}
		now := base + int64(float64(live-base)*math.Abs(math.Sin(t*60))*(0.6+0.1*r.Float64()))
		if i%225 > 210 {
			now = live // larger batches in validation
		}
		all = append(all, Peak{t * 10 * epochMS, min(now, held), held})
	}
	return all
}

// sampleStep returns a step without fusion whose calls to the allocator take allocUS.
func sampleStep(allocUS, launch float64) *Timeline {
	names := []string{
		"gather", "linear", "relu", "linear", "relu", "linear", "relu", "linear", "relu", "classifier",
		"wgrad", "dgrad", "drelu", "wgrad", "dgrad", "drelu", "wgrad", "dgrad", "drelu", "sgd",
	}
	took := map[string]float64{"gather": 1.9, "linear": 3.6, "relu": 1.4, "classifier": 4.2, "wgrad": 4.4, "dgrad": 3.8, "drelu": 1.5, "sgd": 2.1}
	t := &Timeline{Steps: 9}
	host, gpu := 0., 2.
	each := allocUS / 40
	for i, name := range names {
		t.Calls = append(t.Calls, Span{"Alloc", name + ", 196.0 KiB", host, each})
		t.Blocks = append(t.Blocks, Span{name, "196.0 KiB", host, 0})
		host += each + 1.9
		gpu = max(gpu+launch, host)
		t.Kernels = append(t.Kernels, Span{name, "64×784×784", gpu, took[name] * (1 + 0.02*float64(i%3))})
		gpu += took[name]
	}
	host = max(host, gpu-6)
	for i := range t.Blocks {
		t.Calls = append(t.Calls, Span{"Free", t.Blocks[i].Name + ", 196.0 KiB", host, each})
		host += each
		t.Blocks[i].Length = host - t.Blocks[i].Start
	}
	t.Length = max(host, gpu+1.5)
	return t
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func sampleMap(r *rand.Rand) *allocator.Map {
	const page = 2 << 20
	m := &allocator.Map{}
	tags := []string{"linear", "relu", "weights", "wgrad", "dgrad", "classifier", "gather", "images", "order"}
	addr := uintptr(0x7f2a40000000)
	for i, size := range []int64{64 << 20, 30 << 20, 8 << 20} {
		s := allocator.MapSegment{Addr: addr, Bytes: 1 << 30, Kind: allocator.SegmentsVirtual, Stream: 0x55d0c0, Page: page}
		if i == 2 {
			s.Kind = "stitch"
		}
		end := addr + uintptr(size)
		for at := addr; at < end; {
			b := allocator.MapBlock{Addr: at, Bytes: 256 * (200 + r.Int64N(2600)), State: "live", Stream: s.Stream, Tag: tags[r.IntN(len(tags))]}
			switch r.IntN(14) {
			case 0:
				b.State = "free"
			case 1:
				b.State = "cached"
			case 2:
				b.State = "waiting"
			case 3:
				b.Bytes *= 3
			}
			if b.State != "live" {
				b.Tag = ""
			} else {
				b.Asked = b.Bytes - 16*r.Int64N(16)
			}
			b.Bytes = min(b.Bytes, int64(end-at))
			b.Asked = min(b.Asked, b.Bytes)
			s.Blocks = append(s.Blocks, b)
			at += uintptr(b.Bytes)
		}
		s.Blocks = append(s.Blocks, allocator.MapBlock{Addr: end, Bytes: s.Bytes - size, State: "unmapped"})
		m.Segments = append(m.Segments, s)
		addr += 1 << 30
	}
	return m
}

// manyBlocks returns the map of a pool with n blocks of 512 bytes in one segment.
func manyBlocks(n int) *allocator.Map {
	s := allocator.MapSegment{Addr: 1 << 40, Bytes: int64(n) * 512, Kind: allocator.SegmentsMalloc}
	for i := range n {
		b := allocator.MapBlock{Addr: s.Addr + uintptr(i)*512, Bytes: 512, State: "free"}
		if i%2 == 0 {
			b.State, b.Tag = "live", fmt.Sprintf("tag%d", i%20)
		}
		s.Blocks = append(s.Blocks, b)
	}
	return &allocator.Map{Segments: []allocator.MapSegment{s}}
}

// sampleReplay returns a trace on two strategies of the pool and on another allocator.
func sampleReplay() Page {
	p := Page{Title: "transformer.csv", Replay: true, Turns: true}
	for i, name := range []string{"tlsf", "bestfit", "cuda"} {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		run := Run{Name: name, Facts: []Fact{{"trace", "transformer.csv"}, {"allocations", "21000"}}}
		for range 7 {
			run.CallNS = append(run.CallNS, []float64{56, 57, 1090}[i]*(1+0.03*r.NormFloat64()))
		}
		for j := range 5000 {
			run.Memory = append(run.Memory, Peak{float64(j), int64(j%1000) << 20, 1200 << 20})
		}
		if i < 2 {
			run.Peak = sampleMap(r)
		}
		p.Runs = append(p.Runs, run)
	}
	return p
}
