package allocatortest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
)

// The cases of the suite on statistics, Live, Trim and Close.

func statistics(t *testing.T, s *suite) {
	a := s.Allocator
	if got := a.Stats(); got.Allocs != 0 || got.Frees != 0 || got.Allocated != 0 || got.PeakAllocated != 0 {
		t.Errorf("new allocator has %+v", got)
	}
	b, c := s.alloc(1000, s.Streams[0]), s.alloc(3<<20, s.Streams[0])
	two := a.Stats()
	if two.Allocs != 2 || two.Frees != 0 {
		t.Errorf("%d allocs and %d frees, want 2 and 0", two.Allocs, two.Frees)
	}
	if two.Allocated < 1000+3<<20 || two.PeakAllocated != two.Allocated {
		t.Errorf("%d bytes allocated, peak %d", two.Allocated, two.PeakAllocated)
	}
	if two.Reserved < two.Allocated || two.PeakReserved < two.Reserved {
		t.Errorf("%d allocated, %d reserved, peak %d", two.Allocated, two.Reserved, two.PeakReserved)
	}
	if two.DriverMallocs < 1 || two.DriverCalls < two.DriverMallocs {
		t.Errorf("%d driver calls, %d of them for memory", two.DriverCalls, two.DriverMallocs)
	}
	s.free(c, s.Streams[0])
	one := a.Stats()
	if one.Frees != 1 || one.Allocated >= two.Allocated || one.PeakAllocated != two.PeakAllocated {
		t.Errorf("after a free: %+v; before: %+v", one, two)
	}
	a.ResetPeaks()
	if got := a.Stats(); got.PeakAllocated != one.Allocated || got.PeakReserved != got.Reserved {
		t.Errorf("after ResetPeaks: %+v", got)
	}
	s.free(b, s.Streams[0])
	if got := a.Stats(); got.Allocated != 0 || got.Allocs != 2 || got.Frees != 2 {
		t.Errorf("after all frees: %+v", got)
	}
	s.sync()
	s.must(a.Trim(0))
	a.ResetPeaks()
	if got := a.Stats(); got.PeakAllocated != got.Allocated || got.PeakReserved != got.Reserved {
		t.Errorf("after ResetPeaks: %+v", got)
	}
}

// releasedStatistics releases streams: their calls stay in the statistics, and no peak grows.
func releasedStatistics(t *testing.T, s *suite) {
	releaser, ok := allocator.As[allocator.StreamReleaser](s.Allocator)
	if !ok {
		t.Skip("no ReleaseStream")
	}
	a, streams := s.Allocator, s.Streams[1:3]
	for i, bytes := range []int64{3<<20 + 1, 1<<20 + 1} {
		s.free(s.alloc(bytes, streams[i]), streams[i])
	}
	before := a.Stats()
	for _, on := range streams {
		if err := releaser.ReleaseStream(on); err != nil {
			t.Fatalf("ReleaseStream: %v", err)
		}
		if got := a.Stats(); got.Allocs != 2 || got.Frees != 2 || got.Allocated != 0 || got.PeakAllocated != before.PeakAllocated {
			t.Errorf("after ReleaseStream: %+v; before: %+v", got, before)
		}
	}
	a.ResetPeaks()
	if got := a.Stats(); got.PeakAllocated != 0 {
		t.Errorf("after ResetPeaks: %+v", got)
	}
}

func trim(t *testing.T, s *suite) {
	on := s.Streams[0]
	kept := s.alloc(100, on)
	s.freeAll([]allocator.Block{s.alloc(8<<20, on), s.alloc(16<<20, on), s.alloc(1<<20, on)}, on)
	s.sync()
	for _, keep := range []int64{1 << 40, 12 << 20, 0, -1} {
		s.must(s.Allocator.Trim(keep))
	}
	if got := s.Allocator.Stats(); got.Reserved < got.Allocated || got.Allocated < 100 {
		t.Errorf("after Trim with a block handed out: %+v", got)
	}
	s.free(kept, on)
	s.must(s.Allocator.Trim(0))
	if got := s.Allocator.Stats().Reserved; s.Returns && got != 0 {
		t.Errorf("%d bytes reserved after Trim(0) with nothing handed out", got)
	}
	s.free(s.alloc(2<<20, on), on)
}

func liveBlocks(t *testing.T, s *suite) {
	if got := s.Allocator.Live(); len(got) != 0 {
		t.Errorf("new allocator has %d blocks handed out", len(got))
	}
	want := map[uintptr]allocator.LiveBlock{}
	var blocks []allocator.Block
	for i, tag := range []string{"weights", "images", "weights", ""} {
		on := s.Streams[i%2]
		b, err := s.Allocator.Alloc(int64(1000*i), on, tag)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
		want[b.Addr] = allocator.LiveBlock{Addr: b.Addr, Bytes: int64(1000 * i), Stream: on, Tag: tag}
	}
	got := s.Allocator.Live()
	if len(got) != len(want) {
		t.Errorf("%d blocks handed out, want %d", len(got), len(want))
	}
	for i, b := range got {
		if b != want[b.Addr] {
			t.Errorf("block %+v, want %+v", b, want[b.Addr])
		}
		if i > 0 && b.Addr <= got[i-1].Addr {
			t.Errorf("block %d at %#x comes after %#x", i, b.Addr, got[i-1].Addr)
		}
	}
	for i, b := range blocks {
		s.free(b, s.Streams[i%2])
	}
	if got := s.Allocator.Live(); len(got) != 0 {
		t.Errorf("%d blocks handed out after every one was freed", len(got))
	}
}

func leak(t *testing.T, s *suite) {
	for range 3 {
		s.alloc(1000, s.Streams[0])
	}
	if _, err := s.Allocator.Alloc(50, s.Streams[1], "bias"); err != nil {
		t.Fatal(err)
	}
	s.free(s.alloc(77, s.Streams[0]), s.Streams[0])
	s.sync()
	err := s.Allocator.Close()
	e, leaked := errors.AsType[*allocator.LeakError](err)
	if !leaked {
		t.Fatalf("Close with blocks handed out: %v, want a LeakError", err)
	}
	want := []allocator.TagBytes{{Tag: t.Name(), Blocks: 3, Bytes: 3000}, {Tag: "bias", Blocks: 1, Bytes: 50}}
	if e.Blocks != 4 || e.Bytes != 3050 || !slices.Equal(e.Tags, want) {
		t.Errorf("leak %+v, want tags %+v", e, want)
	}
	if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "bias") {
		t.Errorf("leak text is not one line with the tags: %q", text)
	}
	s.left()
}

func closed(t *testing.T, s *suite) {
	on := s.Streams[0]
	b := s.alloc(100, on)
	s.sync()
	before := s.Allocator.Stats()
	if err := s.Allocator.Close(); !errors.As(err, new(*allocator.LeakError)) {
		t.Errorf("Close: %v, want a LeakError", err)
	}
	for what, err := range map[string]error{
		"Close": s.Allocator.Close(),
		"Free":  s.Allocator.Free(b, on),
		"Trim":  s.Allocator.Trim(0),
	} {
		if !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", what, err)
		}
	}
	if _, err := s.Allocator.Alloc(1, on, "late"); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("Alloc after Close: %v, want ErrClosed", err)
	}
	if got := s.Allocator.Live(); len(got) != 0 {
		t.Errorf("%d blocks handed out after Close", len(got))
	}
	got := s.Allocator.Stats()
	if got.Allocated != 0 || got.Reserved != 0 {
		t.Errorf("after Close: %+v", got)
	}
	if got.Allocs != before.Allocs || got.PeakAllocated != before.PeakAllocated || got.PeakReserved < before.PeakReserved {
		t.Errorf("Close made %+v of %+v", got, before)
	}
	s.left()
}
