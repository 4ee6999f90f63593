package collective

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"mlpool/kernels/ref"
)

// group is a group of ranks in one process.
type group struct {
	mu     sync.Mutex
	change sync.Cond
	calls  []call // of the current operation, by rank
	come   int    // ranks that have called it
	round  int    // operations done
	sum    []float32
	closed int
	err    error
	open   atomic.Int64 // allocations of symmetric memory
}

// call is a rank's call of an operation.
type call struct {
	x []float32
	// Of an exchange, whose x are the updates:
	w       []float32
	rounded []ref.BF16 // if not empty, each rank changes its part of w
}

// Local is a rank of a group in one process, whose arrays are host memory. Its AllReduce and
// Exchange return once all ranks have called them, each from its own goroutine, and the operation is
// done.
type Local struct {
	group *group
	rank  int
}

var _ Collective = (*Local)(nil)

// NewLocal returns the ranks of a new group.
func NewLocal(size int) []*Local {
	g := &group{calls: make([]call, size)}
	g.change.L = &g.mu
	ranks := make([]*Local, size)
	for i := range ranks {
		ranks[i] = &Local{g, i}
	}
	return ranks
}

// Rank and the methods after it: see [Collective].
func (l *Local) Rank() int { return l.rank }

func (l *Local) Size() int { return len(l.group.calls) }

// AllReduce adds up in the order of the ranks.
func (l *Local) AllReduce(x uintptr, n int, _ uintptr) error {
	return l.meet(call{x: arrayAt[float32](x, n)}, (*group).reduce)
}

func (l *Local) Exchange(u Updates, _ uintptr) error {
	c := call{x: arrayAt[float32](u.X, u.N), w: arrayAt[float32](u.W, u.N)}
	if u.Rounded != 0 {
		c.rounded = arrayAt[ref.BF16](u.Rounded, u.N)
	}
	return l.meet(c, (*group).exchange)
}

// meet waits for the calls of all ranks. The last one does the work.
func (l *Local) meet(c call, work func(*group)) error {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	g.calls[l.rank] = c
	round := g.round
	if g.come++; g.come == len(g.calls) {
		work(g)
		clear(g.calls)
		g.come, g.round = 0, g.round+1
		g.change.Broadcast()
	}
	for g.round == round && g.err == nil {
		g.change.Wait()
	}
	if g.round == round {
		return g.err
	}
	return nil
}

func (g *group) add() {
	g.sum = append(g.sum[:0], g.calls[0].x...)
	for _, c := range g.calls[1:] {
		for i, v := range c.x {
			g.sum[i] += v
		}
	}
}

func (g *group) reduce() {
	g.add()
	for _, c := range g.calls {
		copy(c.x, g.sum)
	}
}

func (g *group) exchange() {
	g.add()
	part := len(g.sum) / len(g.calls)
	for rank, of := range g.calls {
		for i := rank * part; i < (rank+1)*part; i++ {
			g.sum[i] = of.w[i] + g.sum[i]
			of.w[i] = g.sum[i]
		}
	}
	for _, c := range g.calls {
		if c.rounded != nil {
			ref.Round(c.rounded, g.sum, len(g.sum))
		} else {
			copy(c.w, g.sum)
		}
		for i := range c.x { // so that no rank relies on what another Collective leaves there
			c.x[i] = float32(math.NaN())
		}
	}
}

// AllocSymmetric returns host memory, which all ranks of the process reach.
func (l *Local) AllocSymmetric(bytes int) (addr uintptr, free func() error, err error) {
	const line = 64 // alignment, enough for vector loads
	memory := make([]float32, (bytes+line)/4)
	addr = uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	addr = (addr + line - 1) / line * line
	l.group.open.Add(1)
	return addr, sync.OnceValue(func() error {
		runtime.KeepAlive(memory)
		l.group.open.Add(-1)
		return nil
	}), nil
}

func (l *Local) Err() error {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	return l.group.err
}

// Abort ends the group for all of its ranks.
func (l *Local) Abort(reason error) {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	l.group.err = cmp.Or(l.group.err, reason)
	l.group.change.Broadcast()
}

func (l *Local) Close() error {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	if l.group.closed++; l.group.closed > len(l.group.calls) {
		return errors.New("collective: rank closed twice")
	}
	if open := l.group.open.Load(); open > 0 && l.group.closed == len(l.group.calls) {
		return fmt.Errorf("collective: %d allocations of symmetric memory were not freed", open)
	}
	return nil
}

// arrayAt returns the n elements at an address of host memory, which its allocator keeps
// alive. The address is read as a pointer rather than converted, which go vet would reject.
func arrayAt[T float32 | ref.BF16](addr uintptr, n int) []T {
	if n <= 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
