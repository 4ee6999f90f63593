package block

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const unit = Alignment

// owner makes records, and keeps what is freed that is in no range.
type owner struct{ freed []*Node }

func (o *owner) NewNode() *Node {
	n := new(Node)
	n.Owner = o
	return n
}

func (o *owner) FreeApart(n *Node) { o.freed = append(o.freed, n) }

// highest is a Placement: of the blocks that fit, the one with the highest address.
type highest struct{ blocks []*FreeBlock }

func (c *highest) Insert(n *FreeBlock) { c.blocks = append(c.blocks, n) }
func (c *highest) Remove(n *FreeBlock) {
	c.blocks = slices.DeleteFunc(c.blocks, func(o *FreeBlock) bool { return o == n })
}
func (c *highest) Find(size int64) (best *FreeBlock) {
	for _, n := range c.blocks {
		if n.Size() >= size && (best == nil || n.Addr() > best.Addr()) {
			best = n
		}
	}
	return best
}

// A model is a heap, and what a simple bookkeeper knows of it.
type model struct {
	*Heap
	*owner
	live  []*Node
	sizes []int64 // of live, as they were asked for
	next  uintptr // where the next range begins
	free  map[*Node]Change
}

func newModel(s Strategy) *model {
	m := &model{Heap: new(Heap), owner: new(owner), next: 1 << 20, free: map[*Node]Change{}}
	m.Init(m.owner, s)
	return m
}

// grow adds a range that lies apart from the others.
func (m *model) grow(bytes int64) *Range {
	g := &Range{Addr: m.next, Size: m.RangeSize(bytes)}
	m.next += uintptr(g.Size) + unit
	m.Coalesce(m.Hold(g))
	return g
}

// take takes a block, for which the heap grows where it finds none.
func (m *model) take(size int64) {
	n := m.Take(size)
	if n == nil {
		m.Flush()
		n = m.TakeBest(size, Place{})
	}
	if n == nil {
		m.grow(4 * size)
		n = m.TakeBest(size, Place{})
	}
	n.State = Owned
	m.live, m.sizes = append(m.live, n), append(m.sizes, size)
}

// drop takes live[i] out of the live blocks.
func (m *model) drop(i int) *Node {
	n := m.live[i]
	m.live, m.sizes = slices.Delete(m.live, i, i+1), slices.Delete(m.sizes, i, i+1)
	return n
}

// learn brings free up to date with Changes.
func (m *model) learn() {
	see := func(c *Change) {
		if c.Free {
			m.free[c.Node] = *c
		} else {
			delete(m.free, c.Node)
		}
	}
	all, ok := m.Changes()
	if ok {
		for i := range all {
			see(&all[i])
		}
	} else {
		clear(m.free)
		m.Watch(unit, see)
	}
	m.KeepChanges(64)
}

func (m *model) check() error {
	if err := m.Check(); err != nil {
		return err
	}
	owned := map[*Node]bool{}
	m.Blocks(func(n *Node) {
		if n.State == Owned {
			owned[n] = true
		}
	})
	for i, n := range m.live {
		if !owned[n] || n.Size() < m.sizes[i] || n.Addr()%unit != 0 {
			return fmt.Errorf("the block at %#x of %d bytes is not what was taken for %d", n.Addr(), n.Size(), m.sizes[i])
		}
	}
	if len(owned) != len(m.live) {
		return fmt.Errorf("%d blocks are taken, want %d", len(owned), len(m.live))
	}
	m.learn()
	known := 0
	var err error
	m.Blocks(func(n *Node) {
		if n.State != Free {
			return
		}
		known++
		if c, ok := m.free[n]; !ok || c.Addr != n.Addr() || c.Size != n.Size() {
			err = fmt.Errorf("Changes does not know the free block at %#x of %d bytes", n.Addr(), n.Size())
		}
	})
	if err == nil && known != len(m.free) {
		err = fmt.Errorf("Changes knows %d free blocks of %d", len(m.free), known)
	}
	return err
}

// unused returns the bytes of the ranges that are one free block.
func (m *model) unused() (bytes int64) {
	m.Blocks(func(n *Node) {
		if n.State == Free && n.Whole() {
			bytes += n.Size()
		}
	})
	return bytes
}

// play does what data says, three bytes a call.
func (m *model) play(data []byte) error {
	for ; len(data) >= 3; data = data[3:] {
		size := (1 + int64(data[1])) << (data[2] % 8) * unit
		switch op := data[0] % 8; {
		case op < 3:
			m.take(size)
		case op < 5 && len(m.live) > 0:
			m.Recycle(m.drop(int(data[1]) % len(m.live)))
		case op == 5 && len(m.live) > 0:
			m.Coalesce(m.drop(int(data[1]) % len(m.live)))
		case op == 6:
			m.Flush()
			m.Blocks(func(n *Node) {
				if n.State == Free && n.Whole() {
					m.Remove(m.Cut(n, n.Addr(), n.End()), n.rng)
				}
			})
		case op == 7:
			m.cut(size)
		}
		if err := m.check(); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts bytes out of the middle of a free block.
func (m *model) cut(size int64) {
	if m.strategy.Rigid {
		return
	}
	m.Flush()
	n := m.place.find(3 * size)
	if n == nil || n.Size() < 3*size {
		return
	}
	lo := n.Addr() + uintptr(size)
	n = m.Cut(n, lo, lo+uintptr(size))
	n.State = Owned
	m.live, m.sizes = append(m.live, n), append(m.sizes, size)
}

// strategies are those of this package, and one of a Placement.
var strategies = map[string]Strategy{
	"tlsf": TLSF, "sizeclass": SizeClass, "buddy": Buddy, "arena": Arena, "slab": Slab,
	"chosen": Chosen(func() Placement { return new(highest) }),
}

func TestHeap(t *testing.T) {
	for name, s := range strategies {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			data := make([]byte, 3*2000)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			m := newModel(s)
			if err := m.play(data); err != nil {
				t.Fatal(err)
			}
			for len(m.live) > 0 {
				m.Recycle(m.drop(0))
			}
			m.Flush()
			if err := m.check(); err != nil || m.unused() != m.Reserved() {
				t.Errorf("all is freed, and %d of %d bytes are unused: %v", m.unused(), m.Reserved(), err)
			}
		})
	}
}

func FuzzHeap(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 2, 0, 3, 0, 0, 7, 4, 0, 5, 0, 0, 6, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, s := range strategies {
			if err := newModel(s).play(data[:min(len(data), 300)]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

// TestRanges joins neighbours and takes bytes out of the middle of them.
func TestRanges(t *testing.T) {
	for name, s := range strategies {
		if s.Rigid {
			continue
		}
		m := newModel(s)
		left, right := &Range{Addr: 0, Size: 40 * unit}, &Range{Addr: 40 * unit, Size: 20 * unit}
		for _, g := range []*Range{left, right} {
			m.Coalesce(m.Hold(g))
		}
		g, other := m.Join(left, right)
		m.Flush()
		if g != left || other != right || g.Size != 60*unit || m.RangeCount() != 1 || m.check() != nil {
			t.Errorf("%s: %+v after Join, %v", name, g, m.check())
		}
		rest := m.Remove(m.Cut(m.place.find(60*unit), 10*unit, 30*unit), g)
		if rest == nil || rest.Addr != 30*unit || g.Size != 10*unit || m.Reserved() != 40*unit || m.check() != nil {
			t.Errorf("%s: %+v and %+v after Remove, %v", name, g, rest, m.check())
		}
	}
}
