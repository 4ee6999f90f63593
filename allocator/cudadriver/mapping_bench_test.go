package cudadriver_test

import (
	"fmt"
	"testing"
	"time"

	"mlpool/allocator/cudadriver"
)

// BenchmarkMapping reports what the driver takes, in µs for each chunk of a range, to create, map, unmap and release
// chunks with a handle each, or all as one handle, and of a Shareable Driver. Mapping includes access. TUNING.md of package allocator has results.
func BenchmarkMapping(b *testing.B) {
	if err := cudadriver.Available(); err != nil {
		b.Skip(err)
	}
	for _, mib := range []int64{2, 32, 256} {
		for _, chunks := range []int64{1, 16, 256} {
			var d cudadriver.Driver
			b.Run(fmt.Sprintf("%dMiB/%d/handles", mib, chunks), func(b *testing.B) { benchmarkMapping(b, d, mib<<20, chunks, chunks) })
			b.Run(fmt.Sprintf("%dMiB/%d/handle", mib, chunks), func(b *testing.B) { benchmarkMapping(b, d, chunks*mib<<20, 1, chunks) })
			b.Run(fmt.Sprintf("%dMiB/%d/shareable", mib, chunks), func(b *testing.B) {
				d, err := cudadriver.New(cudadriver.Options{Shareable: true})
				if err != nil {
					b.Skip(err)
				}
				benchmarkMapping(b, d, mib<<20, chunks, chunks)
			})
		}
	}
}

func benchmarkMapping(b *testing.B, d cudadriver.Driver, bytes, handles, chunks int64) {
	if free, _, err := d.MemInfo(); err != nil || free < bytes*handles {
		b.Skipf("%d bytes free: %v", free, err)
	}
	addr, err := d.ReserveRange(bytes * handles)
	try(b, err)
	pages := make([]uintptr, handles)
	at := func(i int) uintptr { return addr + uintptr(int64(i)*bytes) }
	steps := []struct {
		name string
		call func(i int) error
		took time.Duration
	}{
		{name: "create", call: func(i int) (err error) { pages[i], err = d.CreatePages(bytes); return err }},
		{name: "map", call: func(i int) error { return d.MapPages(at(i), pages[i], bytes) }},
		{name: "unmap", call: func(i int) error { return d.UnmapPages(at(i), bytes) }},
		{name: "release", call: func(i int) error { return d.ReleasePages(pages[i]) }},
	}
	for b.Loop() {
		for s := range steps {
			from := time.Now()
			for i := range pages {
				try(b, steps[s].call(i))
			}
			steps[s].took += time.Since(from)
		}
	}
	for _, s := range steps {
		b.ReportMetric(float64(s.took.Nanoseconds())/1e3/float64(b.N)/float64(chunks), s.name+"-µs/chunk")
	}
	try(b, d.ReleaseRange(addr, bytes*handles))
}
