package allocatortest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"mlpool/allocator"
)

// The cases of the suite on the order of work: on one stream, on several, and on several
// goroutines.

// held is a block that is handed out, and its stream.
type held struct {
	b  allocator.Block
	on allocator.Stream
}

// contents fills each block with its number and reads it back before it frees the block,
// among random sizes, frees and trims.
func contents(t *testing.T, s *suite) {
	const steps, most = 10000, 64 << 10
	r := rand.New(rand.NewPCG(1, 2))
	type filled struct {
		held
		id byte
	}
	var blocks []filled
	drop := func(i int) {
		f := blocks[i]
		if s.Verify != nil {
			if err := s.Verify(f.b, f.on, f.id); err != nil {
				t.Fatalf("block of %d bytes at %#x: %v", f.b.Size, f.b.Addr, err)
			}
		}
		s.free(f.b, f.on)
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
	}
	for step := range steps {
		switch k := r.IntN(100); {
		case k < 55 && len(blocks) < 200:
			on := s.Streams[r.IntN(len(s.Streams))]
			f := filled{held{s.alloc(r.Int64N(most), on), on}, byte(step)}
			if s.Fill != nil {
				s.must(s.Fill(f.b, f.on, f.id))
			}
			blocks = append(blocks, f)
		case k < 99 && len(blocks) > 0:
			drop(r.IntN(len(blocks)))
		case k == 99:
			s.must(s.Allocator.Trim(r.Int64N(16 << 20)))
		}
	}
	if got := s.Allocator.Live(); len(got) != len(blocks) {
		t.Errorf("%d blocks handed out, want %d", len(got), len(blocks))
	}
	for len(blocks) > 0 {
		drop(len(blocks) - 1)
	}
}

// steadyState repeats a training step. Only the first steps may take memory.
func steadyState(t *testing.T, s *suite) {
	if !s.Caches {
		t.Skip("allocator asks its driver each time")
	}
	on := s.Streams[0]
	fixed := []allocator.Block{s.alloc(5<<20, on), s.alloc(784*784*4, on)}
	step := func() {
		var scope []allocator.Block
		for i := range 12 {
			scope = append(scope, s.alloc(64*784*4, on), s.alloc(int64(64*(i+1)), on))
			if i%3 == 2 {
				s.free(scope[0], on)
				scope = scope[1:]
			}
		}
		s.freeAll(scope, on)
	}
	for range max(s.Settles, 2) {
		step()
	}
	before := s.Allocator.Stats()
	for range 100 {
		step()
	}
	after := s.Allocator.Stats()
	if after.DriverMallocs != before.DriverMallocs || after.Reserved != before.Reserved {
		t.Errorf("100 repeated steps took %d driver mallocs and %d more bytes",
			after.DriverMallocs-before.DriverMallocs, after.Reserved-before.Reserved)
	}
	s.freeAll(fixed, on)
}

// acrossStreams frees blocks on other streams than their own, ordered as a careful caller
// orders them.
func acrossStreams(t *testing.T, s *suite) {
	r := rand.New(rand.NewPCG(3, 4))
	var blocks []held
	for range 2000 {
		if on := s.Streams[r.IntN(len(s.Streams))]; len(blocks) < 30 && r.IntN(5) < 3 {
			blocks = append(blocks, held{s.alloc(1+r.Int64N(1<<20), on), on})
			continue
		} else if len(blocks) > 0 {
			i := r.IntN(len(blocks))
			h := blocks[i]
			if h.on != on && s.Order != nil {
				s.must(s.Order(h.on, on))
			} else if h.on != on {
				s.sync()
			}
			if s.Use != nil {
				s.must(s.Use(h.b, on))
			}
			s.free(h.b, on)
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		}
	}
	for _, h := range blocks {
		s.free(h.b, h.on)
	}
	if got := s.Allocator.Stats().Allocated; got != 0 {
		t.Errorf("%d bytes allocated after every block was freed", got)
	}
}

// goroutines allocates on eight goroutines, two for each stream.
func goroutines(t *testing.T, s *suite) {
	const workers, rounds = 8, 1000
	errs := make(chan error, workers)
	for w := range workers {
		go func() { errs <- Churn(s.Allocator, s.Streams[w%4], uint64(w), rounds) }()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := s.Allocator.Stats(); got.Allocated != 0 || got.Allocs != got.Frees || got.Allocs < workers*rounds/4 {
		t.Errorf("after all goroutines: %+v", got)
	}
}

// Churn makes rounds calls of a on one stream. It holds up to sixteen blocks of random
// sizes and frees all in the end.
func Churn(a allocator.Allocator, on allocator.Stream, seed uint64, rounds int) error {
	r := rand.New(rand.NewPCG(seed, 5))
	var blocks []allocator.Block
	for range rounds {
		if len(blocks) < 16 && r.IntN(2) == 0 {
			b, err := a.Alloc(r.Int64N(64<<10), on, "churn")
			if err != nil {
				return err
			}
			blocks = append(blocks, b)
		} else if n := len(blocks); n > 0 {
			if err := a.Free(blocks[n-1], on); err != nil {
				return err
			}
			blocks = blocks[:n-1]
		}
	}
	for _, b := range blocks {
		if err := a.Free(b, on); err != nil {
			return err
		}
	}
	return nil
}

// handedOver frees blocks of other goroutines.
func handedOver(t *testing.T, s *suite) {
	const producers, each = 4, 300
	blocks := make(chan held, 16)
	errs := make(chan error, producers)
	var wg sync.WaitGroup
	for w := range producers {
		wg.Go(func() {
			on := s.Streams[w]
			for i := range each {
				b, err := s.Allocator.Alloc(int64(i*100), on, "handed over")
				if err != nil {
					errs <- err
					return
				}
				blocks <- held{b, on}
			}
		})
	}
	go func() {
		wg.Wait()
		close(blocks)
	}()
	freed := 0
	for h := range blocks {
		s.free(h.b, h.on)
		freed++
	}
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	if freed != producers*each {
		t.Errorf("%d blocks were freed, want %d", freed, producers*each)
	}
}

// recorded uses blocks on a second stream, for which only RecordStream makes the
// memory's next use wait.
func recorded(t *testing.T, s *suite) {
	r, ok := allocator.As[allocator.StreamRecorder](s.Allocator)
	if !ok || s.Use == nil || s.Order == nil {
		t.Skip("no RecordStream, or nothing to see it with")
	}
	probe := s.alloc(100, s.Streams[0])
	if err := r.RecordStream(probe, s.Streams[1]); errors.Is(err, errors.ErrUnsupported) {
		s.free(probe, s.Streams[0])
		t.Skip("RecordStream is not supported")
	}
	s.free(probe, s.Streams[0])
	if err := r.RecordStream(probe, s.Streams[1]); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("RecordStream of a freed block: %v, want ErrDoubleFree", err)
	}
	if err := r.RecordStream(allocator.Block{}, s.Streams[1]); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("RecordStream of the zero block: %v, want ErrUnknownBlock", err)
	}

	random := rand.New(rand.NewPCG(6, 7))
	for range 500 {
		order := random.Perm(len(s.Streams))
		on, other, last := s.Streams[order[0]], s.Streams[order[1]], s.Streams[order[random.IntN(2)*2]]
		b := s.alloc(1+random.Int64N(4)<<10, on)
		s.must(s.Use(b, on))
		s.must(s.Order(on, other))
		s.must(s.Order(on, last))
		s.must(s.Use(b, other))
		s.must(r.RecordStream(b, other))
		s.must(r.RecordStream(b, other))
		s.free(b, last)
	}
	if got := s.Allocator.Stats().Allocated; got != 0 {
		t.Errorf("%d bytes allocated after every block was freed", got)
	}
}
