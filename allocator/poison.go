package allocator

import (
	"errors"
	"fmt"
	"sync"
)

// A Filler writes and compares device memory in words of 4 bytes. addr is a
// multiple of 4, and so is bytes.
type Filler interface {
	// Fill sets every word of a range to value, in the order of the stream.
	Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error
	// Differing counts the words that are not value, in the order of the
	// stream, and waits for the answer.
	Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error)
}

// A Poison is an Allocator that makes wrong uses of memory show: a block is full
// of NaNs until it is written and again once it is freed, and lies between two
// red zones that Free looks at. Every Free waits for its stream, and each block
// takes poisonExtra bytes more, which the statistics include.
type Poison struct {
	Allocator
	filler Filler

	mu   sync.Mutex
	tags map[Block]string // of the blocks handed out
}

const (
	redzone = Alignment // bytes on either side
	// poisonExtra are the bytes that a block takes beyond its size: two red
	// zones, the second of which starts at a multiple of 4.
	poisonExtra = 2*redzone + 3

	poisonNaN    = 0x7fc0dead // a quiet float32 NaN
	redzoneValue = 0xfdfdfdfd
)

// RedzoneError says that something was written outside a block.
type RedzoneError struct {
	Block         Block
	Tag           string
	Before, After int64 // words of 4 bytes that were changed on either side
}

func (e *RedzoneError) Error() string {
	return fmt.Sprintf("allocator: block %q of %d bytes at %#x was written outside: %d words before it, %d after",
		e.Tag, e.Block.Size, e.Block.Addr, e.Before, e.After)
}

// NewPoison returns a with poison, written with f.
func NewPoison(a Allocator, f Filler) *Poison {
	return &Poison{Allocator: a, filler: f, tags: map[Block]string{}}
}

// Unwrap returns the allocator that is poisoned. Blocks must not be passed to
// it.
func (p *Poison) Unwrap() Allocator { return p.Allocator }

// outer returns the block to hand out for one of the poisoned allocator.
func outer(b Block) Block {
	b.Addr += redzone
	b.Size -= poisonExtra
	return b
}

// inner is the opposite of outer.
func inner(b Block) Block {
	b.Addr -= redzone
	b.Size += poisonExtra
	return b
}

// zones returns where the block's words and the second red zone begin.
func zones(b Block) (words int64, after uintptr) {
	words = roundUp(b.Size, 4)
	return words, b.Addr + uintptr(words)
}

// Alloc implements [Allocator].
func (p *Poison) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 || bytes > maxRequest {
		return p.Allocator.Alloc(bytes, s, tag)
	}
	in, err := p.Allocator.Alloc(bytes+poisonExtra, s, tag)
	if err != nil {
		var oom *OutOfMemoryError
		if errors.As(err, &oom) {
			oom.Bytes = bytes
		}
		return Block{}, err
	}
	b := outer(in)
	words, after := zones(b)
	err = p.filler.Fill(in.Addr, redzoneValue, redzone, s)
	if err == nil && words > 0 {
		err = p.filler.Fill(b.Addr, poisonNaN, words, s)
	}
	if err == nil {
		err = p.filler.Fill(after, redzoneValue, redzone, s)
	}
	if err != nil {
		return Block{}, errors.Join(err, p.Allocator.Free(in, s))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tags[b] = tag
	return b, nil
}

// Free implements [Allocator]. A block whose red zones were written to is freed
// and is a [*RedzoneError].
func (p *Poison) Free(b Block, s Stream) error {
	p.mu.Lock()
	tag, live := p.tags[b]
	delete(p.tags, b)
	p.mu.Unlock()
	if !live {
		return p.Allocator.Free(inner(b), s)
	}
	damage, err := p.inspect(b, s, tag)
	if err == nil {
		err = p.Allocator.Free(inner(b), s)
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tags[b] = tag
		return err
	}
	if damage != nil {
		return damage
	}
	return nil
}

// inspect compares the red zones and poisons the block.
func (p *Poison) inspect(b Block, s Stream, tag string) (*RedzoneError, error) {
	words, after := zones(b)
	e := &RedzoneError{Block: b, Tag: tag}
	var err error
	if e.Before, err = p.filler.Differing(b.Addr-redzone, redzoneValue, redzone, s); err != nil {
		return nil, err
	}
	if e.After, err = p.filler.Differing(after, redzoneValue, redzone, s); err != nil {
		return nil, err
	}
	if words > 0 {
		if err := p.filler.Fill(b.Addr, poisonNaN, words, s); err != nil {
			return nil, err
		}
	}
	if e.Before+e.After == 0 {
		return nil, nil
	}
	return e, nil
}

// RecordStream is that of the poisoned allocator, if it has one.
func (p *Poison) RecordStream(b Block, s Stream) error {
	r, ok := As[interface {
		RecordStream(Block, Stream) error
	}](p.Allocator)
	if !ok {
		return errors.ErrUnsupported
	}
	return r.RecordStream(inner(b), s)
}

// Live implements [Allocator].
func (p *Poison) Live() []LiveBlock {
	all := p.Allocator.Live()
	for i := range all {
		all[i].Addr += redzone
		all[i].Bytes -= poisonExtra
	}
	return all
}

// Close implements [Allocator].
func (p *Poison) Close() error {
	p.mu.Lock()
	clear(p.tags)
	p.mu.Unlock()
	err := p.Allocator.Close()
	var leak *LeakError
	if errors.As(err, &leak) {
		leak.Bytes -= int64(leak.Blocks) * poisonExtra
		for i := range leak.Tags {
			leak.Tags[i].Bytes -= int64(leak.Tags[i].Blocks) * poisonExtra
		}
	}
	return err
}
