package pages

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator/allocatortest/fake"
	"mlpool/allocator/internal/block"
)

const testPage = 4096

// A player is a space with three holders and the blocks that were taken of each.
type player struct {
	*Space
	driver   *fake.Device
	holders  [3]*Holder
	blocks   [3][]*block.Node
	stitched []stitched
}

// stitched is a block in a stitch.
type stitched struct {
	at    Location
	of    int // holder
	parts []*block.Node
}

func newPlayer() *player {
	p := &player{driver: fake.New(1 << 30).WithPages(testPage)}
	p.Space = &Space{Driver: p.driver, Page: testPage}
	for i := range p.holders {
		p.holders[i] = newHolder()
	}
	return p
}

// take takes a block of holder i.
func (p *player) take(i int, size int64) {
	if n := p.holders[i].Take(size); n != nil {
		n.State = block.Owned
		p.blocks[i] = append(p.blocks[i], n)
	}
}

// gather takes unused memory of all holders for holder i, as one block.
func (p *player) gather(i int, size int64, stitch bool) {
	h := p.holders[i]
	for _, o := range p.holders {
		o.Flush()
	}
	p.Search(p.holders[:]...)
	var spans []Span
	if stitch {
		var missing int64
		if spans, missing = p.Fragments(h, size, block.Alignment); missing > 0 {
			return
		}
	} else if t := p.Contiguous(h, size, block.Alignment, true); t.Size > 0 && t.Stitch == nil {
		spans = t.Spans(size)
	}
	if len(spans) == 0 {
		return
	}
	p.Collect(h, spans)
	var parts []*block.Node
	for _, x := range spans {
		n := p.CutOut(h, x.Lo, x.Hi)
		n.State = block.Owned
		parts = append(parts, n)
	}
	if len(parts) == 1 {
		p.blocks[i] = append(p.blocks[i], parts[0])
		return
	}
	at, err := p.Stitch(parts)
	if err != nil {
		for _, n := range parts {
			h.Coalesce(n)
		}
		return
	}
	at.Stitch.Blocks.Add(1)
	p.Use(at.Stitch, h, at.Addr, size)
	p.stitched = append(p.stitched, stitched{at, i, parts})
}

// release frees what is in stitch k.
func (p *player) release(k int) {
	x := p.stitched[k]
	p.stitched = slices.Delete(p.stitched, k, k+1)
	x.at.Stitch.Blocks.Add(-1)
	for _, n := range x.parts {
		p.holders[x.of].Coalesce(n)
	}
}

// play does what data says, three bytes a call.
func (p *player) play(data []byte) error {
	for ; len(data) >= 3; data = data[3:] {
		i, size := int(data[1])%3, (1+int64(data[2]))*testPage/16
		h := p.holders[i]
		p.driver.FailAt(0, "")
		if data[0]&0x80 != 0 {
			p.driver.FailAt(1+int(data[2])%5, "")
		}
		switch op := data[0] % 10; {
		case op == 0:
			if made, _ := p.Make(h, block.RoundUp(size, testPage), int64(1+i)*testPage); len(made) > 0 {
				p.Attach(h, made, false)
			}
		case op < 3:
			p.take(i, size/16*16)
		case op == 3 && len(p.blocks[i]) > 0:
			k := int(data[2]) % len(p.blocks[i])
			h.Recycle(p.blocks[i][k])
			p.blocks[i] = slices.Delete(p.blocks[i], k, k+1)
		case op == 4:
			p.gather(i, block.RoundUp(size, block.Alignment), false)
		case op == 5:
			p.gather(i, block.RoundUp(size, block.Alignment), true)
		case op == 6 && len(p.stitched) > 0:
			p.release(int(data[2]) % len(p.stitched))
		case op == 7:
			h.Flush()
			p.Search(h)
			if unused := p.Unused(); len(unused) > 0 {
				p.Release(h, unused[int(data[2])%len(unused)])
			}
		case op == 8:
			if idle := p.Idle(); len(idle) > 0 {
				calls := int(data[2]) % 4
				p.UnstitchSome(idle[0], &calls)
			}
		case op == 9:
			if err := p.nap(i, data[2]); err != nil {
				return err
			}
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

// nap puts the space to sleep, frees a block of holder i, and wakes it, however often the driver refuses.
func (p *player) nap(i int, choice byte) error {
	for range 2 {
		var errs []error
		p.Sleep(&errs)
		if used := p.driver.Used(); used != p.Held || len(errs) == 0 && used > 0 {
			return fmt.Errorf("the driver has %d bytes of pages, %d are held asleep: %w", used, p.Held, errors.Join(errs...))
		}
		if err := p.Space.Check(); err != nil {
			return err
		}
		if choice&1 != 0 {
			break
		}
	}
	if len(p.blocks[i]) > 0 && choice&2 != 0 {
		p.holders[i].Recycle(p.blocks[i][0])
		p.blocks[i] = p.blocks[i][1:]
	}
	for tries := 0; ; tries++ {
		err := p.Wake()
		if err == nil || tries > 1 {
			return err
		}
		if choice&4 != 0 {
			p.Sleep(new([]error))
		}
	}
}

func (p *player) check() error {
	var held int64
	for _, h := range p.holders {
		held += h.Reserved()
		if err := p.CheckIndex(h); err != nil {
			return err
		}
	}
	faults := p.driver.Faults()
	if used := p.driver.Used(); faults == nil && (used != p.Held || held+p.Kept() != p.Held) {
		return fmt.Errorf("the driver has %d bytes of pages, %d are held, %d by heaps", used, p.Held, held)
	}
	return errors.Join(faults, p.Space.Check())
}

// end releases everything.
func (p *player) end() error {
	p.driver.FailAt(0, "")
	var errs []error
	p.Close(&errs)
	if !p.IsEmpty() {
		errs = append(errs, errors.New("the space is not empty"))
	}
	return errors.Join(append(errs, p.driver.Leftover(), p.driver.Faults())...)
}

func TestSpace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 3*5000)
	for i := range data {
		data[i] = byte(random.Uint32())
		if i%3 == 0 && random.IntN(8) > 0 {
			data[i] &^= 0x80
		}
	}
	p := newPlayer()
	if err := p.play(data); err != nil {
		t.Fatal(err)
	}
	if p.Stitched == 0 {
		t.Error("nothing was stitched")
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

func FuzzSpace(f *testing.F) {
	f.Add([]byte{0, 0, 60, 0, 1, 60, 1, 0, 9, 2, 1, 9, 5, 0, 80, 5, 2, 99, 6, 0, 0, 7, 1, 0, 8, 0, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newPlayer()
		if err := errors.Join(p.play(data[:min(len(data), 600)]), p.end()); err != nil {
			t.Fatal(err)
		}
	})
}
