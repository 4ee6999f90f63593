package hostile

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A program is the calls that one seed chooses, on one allocator.
type program struct {
	rig
	target string
	seed   uint64
	quiet  bool // Trim is rare, so that the pool stitches often

	mu     sync.Mutex // guards what follows
	err    error      // why the program ended early
	handed []*held    // blocks that one worker gives to another
}

// held is a block that is handed out.
type held struct {
	allocator.Block
	on      allocator.Stream // that it was allocated for
	tag     string
	owner   allocatortest.Owner
	id      uint32   // of the stream on at that time
	named   []uint32 // ids of the streams named with RecordStream
	damaged bool     // a word outside it was written
	free    bool     // no longer handed out
}

// A worker makes the calls of one goroutine.
type worker struct {
	*program
	random  *rand.Rand
	alone   bool // it is the only worker
	shared  []allocator.Stream
	private []allocator.Stream // only this worker uses them
	streams []allocator.Stream // those of both that exist
	sizes   []int64            // recurring ones, in bytes
	crowd   int                // about how many blocks to hold
	largest int64              // bytes of an ordinary block

	op     int
	blocks []*held
	freed  []allocator.Block
}

// Run runs the program of a seed on a target, one of Targets, and returns its number
// of operations. The error is the first fault, with the command that repeats it. Run
// writes every call to log, unless log is nil.
func Run(seed uint64, target string, log io.Writer) (ops int, err error) {
	return run(seed, target, log, func(r *rig, random *rand.Rand) error { return r.build(target, random) })
}

// RunOn is Run for the allocator that build returns. The target only says whether
// there are several goroutines.
func RunOn(seed uint64, target string, build func(*allocatortest.Fake) allocator.Allocator) (ops int, err error) {
	return run(seed, target, nil, func(r *rig, random *rand.Rand) error {
		r.device(64<<20, random)
		r.chance.DoneOneIn = 2
		r.top = build(r.dev)
		r.finish()
		r.most = 0
		return nil
	})
}

func run(seed uint64, target string, log io.Writer, build func(*rig, *rand.Rand) error) (ops int, err error) {
	h := fnv.New64a()
	io.WriteString(h, target) // never fails
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	p := &program{target: target, seed: seed}
	if err := build(&p.rig, random); err != nil {
		return 0, p.explain(0, fmt.Errorf("construction failed: %w", err))
	}
	p.chance.Log = log
	if log != nil {
		fmt.Fprintln(log, strings.Join(p.about, ", "))
	}
	if random.IntN(4) == 0 {
		p.chance.FailOneIn = 8 << random.IntN(7)
		p.say("one driver call in %d fails", p.chance.FailOneIn)
	}
	p.quiet = p.page > 0 && random.IntN(2) == 0
	workers := p.workers(random)
	p.chance.Concurrent = len(workers) > 1
	p.dev.SetChance(p.chance)
	each := (300 + random.IntN(4000)) / len(workers)
	if len(workers) == 1 {
		workers[0].work(each)
	} else {
		var wait sync.WaitGroup
		for _, w := range workers {
			wait.Go(func() { w.work(each) })
		}
		wait.Wait()
	}
	p.end(workers)
	for _, w := range workers {
		ops += w.op
	}
	return ops, p.err
}

// workers returns the workers and creates their streams.
func (p *program) workers(random *rand.Rand) []*worker {
	n := 1
	if strings.HasSuffix(p.target, threaded) {
		n = 2 + random.IntN(7)
	}
	shared := []allocator.Stream{0, 7, 0x6000_0000}[:1+random.IntN(3)]
	if n > 4 {
		shared = shared[:1]
	}
	for _, s := range shared {
		p.dev.CreateStream(s)
	}
	var all []*worker
	for i := range n {
		w := &worker{
			program: p, random: rand.New(rand.NewPCG(p.seed, uint64(i))), alone: n == 1,
			shared: shared, streams: append([]allocator.Stream(nil), shared...),
			crowd:   2 << random.IntN(7) / n,
			largest: 1 << (10 + random.IntN(7)),
		}
		if page := p.page; page > 0 && random.IntN(4) > 0 { // blocks span pages
			w.largest = min(page<<(1+random.IntN(6)), p.total/8)
		}
		for k := range min(3, 12/n) {
			w.private = append(w.private, allocator.Stream(0x5000+0x100*i+0x10*k))
		}
		p.dev.CreateStream(w.private[0])
		w.streams = append(w.streams, w.private[0])
		for range 6 {
			w.sizes = append(w.sizes, 1+w.random.Int64N(w.largest))
		}
		all = append(all, w)
	}
	return all
}

// fail ends the program with an error. A fault of the device comes first, as it may
// be the cause.
func (w *worker) fail(format string, args ...any) {
	if !w.failed(w.op) {
		w.program.fail(w.op, allocatortest.NewFault(format, args...))
	}
}

func (p *program) fail(op int, f *allocatortest.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = p.explain(op, f)
	}
}

// explain adds to an error the command that repeats it.
func (p *program) explain(op int, err error) error {
	return fmt.Errorf("target %s, seed %d, operation %d: %w\n\t%s\n\tagain: go test ./allocator -run TestHostile -hostile.seed=%d -hostile.target=%s",
		p.target, p.seed, op, err, strings.Join(p.about, ", "), p.seed, p.target)
}

// failed reports whether the program must end.
func (p *program) failed(op int) bool {
	if f := p.dev.FirstFault(); f != nil {
		p.fail(op, f)
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

// caught makes a panic an error.
func (w *worker) caught() {
	if r := recover(); r != nil {
		w.fail("panic: %v\n%s", r, debug.Stack())
	}
}

// work runs n operations.
func (w *worker) work(n int) {
	defer w.caught()
	for range n {
		w.op++
		w.one()
		if w.failed(w.op) {
			return
		}
	}
}

// usual reports whether err is nil. It ends the program if err was not injected.
func (w *worker) usual(what string, err error) bool {
	if err != nil && !errors.Is(err, allocatortest.ErrInjected) {
		w.fail("%s: %w", what, err)
	}
	return err == nil
}

// note logs a call. Without a log it costs next to nothing.
func (w *worker) note(format string, args ...uintptr) {
	if w.chance.Log == nil {
		return
	}
	all := []any{w.op}
	for _, a := range args {
		all = append(all, a)
	}
	fmt.Fprintf(w.chance.Log, "%d: "+format+"\n", all...)
}
