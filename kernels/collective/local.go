package collective

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// group is ranks in one process.
type group struct {
	mu     sync.Mutex
	change sync.Cond
	arrays [][]float32 // of the all-reduce at hand, by rank; nil: not there yet
	come   int         // how many are there
	round  int         // all-reduces done
	sum    []float32
	closed int
	err    error // that ended it
}

// Local is a rank of a group in one process, whose arrays are host memory. Its AllReduce
// is done when it returns, for which all ranks must have called it: each from a goroutine
// of its own.
type Local struct {
	group *group
	rank  int
}

var _ Collective = (*Local)(nil)

// NewLocal returns the ranks of a group.
func NewLocal(size int) []*Local {
	g := &group{arrays: make([][]float32, size)}
	g.change.L = &g.mu
	ranks := make([]*Local, size)
	for i := range ranks {
		ranks[i] = &Local{g, i}
	}
	return ranks
}

// Rank and the methods after it: see [Collective].
func (l *Local) Rank() int { return l.rank }

func (l *Local) Size() int { return len(l.group.arrays) }

// AllReduce adds up in the order of the ranks.
func (l *Local) AllReduce(x uintptr, n int, _ uintptr) error {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	g.arrays[l.rank] = floatsAt(x, n)
	round := g.round
	if g.come++; g.come == len(g.arrays) {
		g.reduce()
	}
	for g.round == round && g.err == nil {
		g.change.Wait()
	}
	if g.round == round {
		return g.err
	}
	return nil
}

// reduce does the all-reduce that all ranks have come to.
func (g *group) reduce() {
	first := g.arrays[0]
	for rank, x := range g.arrays {
		if len(x) != len(first) {
			g.end(fmt.Errorf("collective: rank %d adds up %d numbers, and rank 0 %d: the ranks do not train the same", rank, len(x), len(first)))
			return
		}
	}
	g.sum = append(g.sum[:0], first...)
	for _, x := range g.arrays[1:] {
		for i, v := range x {
			g.sum[i] += v
		}
	}
	for rank, x := range g.arrays {
		copy(x, g.sum)
		g.arrays[rank] = nil
	}
	g.come, g.round = 0, g.round+1
	g.change.Broadcast()
}

func (g *group) end(reason error) {
	if g.err == nil {
		g.err = reason
	}
	g.change.Broadcast()
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
	l.group.end(reason)
}

func (l *Local) Close() error {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	if l.group.closed++; l.group.closed > len(l.group.arrays) {
		return errors.New("collective: a rank was closed twice")
	}
	return nil
}

// floatsAt are n float32 of host memory from an address on, which their allocator keeps
// alive. The address is read as a pointer rather than converted, since no Go pointer it
// came from is at hand.
func floatsAt(addr uintptr, n int) []float32 {
	if n <= 0 {
		return []float32{}
	}
	return unsafe.Slice((*float32)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
