package allocator

import (
	"errors"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// A Filler writes and compares device memory in words of 4 bytes. addr and bytes are
// multiples of 4.
type Filler interface {
	// Fill sets every word of a range to value, in stream order.
	Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error
	// Differing counts the words that are not value, in stream order, and waits for the
	// answer.
	Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error)
}

// A Poison is an Allocator that exposes wrong uses of memory: a block is full of NaNs until
// it is written and again after it is freed, and lies between two red zones that Free
// compares. Every Free waits for its stream. Each block takes poisonExtra bytes more, which
// the statistics include. A block whose red zones were written to is freed, and Free returns a [*RedzoneError].
//
// Free writes and compares in the order of the stream that it is passed. That stream first
// waits, on the device, for the streams named with RecordStream. If the allocator cannot make
// it wait, such a block is left as it is. If the allocator refuses a Free, the block stays
// handed out but its contents are lost, and the stream of that Free counts as one named with
// RecordStream.
type Poison struct {
	decorator // blocks must not be passed to what Unwrap returns
	filler    Filler
	calls     gate // of calls that touch memory
	blocks    handedOut
}

const (
	redzone = Alignment // bytes on either side
	// poisonExtra is the size of two red zones, the second of which starts at a multiple of 4.
	poisonExtra = 2*redzone + 3

	poisonNaN    = 0x7fc0dead // a quiet float32 NaN
	redzoneValue = 0xfdfdfdfd
)

// NewPoison returns a with poison that f writes.
func NewPoison(a Allocator, f Filler) *Poison {
	p := &Poison{filler: f, blocks: newHandedOut()}
	p.decorator = decorator{a, p}
	return p
}

// driverMeter implements metered: f makes every call long.
func (p *Poison) driverMeter() *meter { return nil }

// inner returns the wrapped allocator's block for b. Its Size does not matter to any
// allocator.
func inner(b Block) Block {
	b.Addr -= redzone
	return b
}

// zones returns the size of a block rounded up to words, and where its second red zone
// begins.
func zones(addr uintptr, bytes int64) (words int64, after uintptr) {
	words = block.RoundUp(bytes, 4)
	return words, addr + uintptr(words)
}

// allocAt implements placer.
func (p *Poison) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if at.Unit > 0 {
		at.Offset += redzone
	}
	if bytes < 0 || bytes > maxRequest {
		return p.decorator.allocAt(bytes, at, s, tag)
	}
	if err := p.calls.enter(); err != nil {
		return Block{}, err
	}
	defer p.calls.leave()
	in, err := p.decorator.allocAt(bytes+poisonExtra, at, s, tag)
	if err != nil {
		var oom *OutOfMemoryError
		if errors.As(err, &oom) {
			oom.Bytes = bytes
		}
		return Block{}, err
	}
	b := in
	b.Addr, b.Size = in.Addr+redzone, bytes
	words, after := zones(b.Addr, bytes)
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
	p.blocks.add(b, handed{bytes: bytes, stream: s, tag: tag})
	return b, nil
}

func (p *Poison) freeSized(b Block, s Stream) (bytes int64, err error) {
	if err := p.calls.enter(); err != nil {
		return 0, err
	}
	defer p.calls.leave()
	h, err := p.blocks.take(b)
	if err != nil {
		return 0, err
	}
	if h == nil {
		bytes, err = freeSized(p.Allocator, inner(b), s)
		return bytes - poisonExtra, err
	}
	bytes = h.bytes
	damage, err := p.inspect(b, h, s)
	if err == nil {
		if err = p.Allocator.Free(inner(b), s); err != nil {
			err = undo.Both(err, p.orderPoison(b, h, s))
		}
	}
	p.blocks.done(b, h, err == nil)
	if err == nil && damage != nil {
		damage.Block = b
		damage.Block.Size = bytes
		err = damage
	}
	return bytes, err
}

// inspect compares the red zones of b and poisons it.
func (p *Poison) inspect(b Block, h *handed, s Stream) (*RedzoneError, error) {
	if h.shared {
		if err := p.orderUsers(b, s); errors.Is(err, errors.ErrUnsupported) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	words, after := zones(b.Addr, h.bytes)
	e := &RedzoneError{Tag: h.tag}
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

// orderPoison makes the work after a later Free of b wait for the poison that was queued on
// s. If the allocator cannot be told of s, the host waits.
func (p *Poison) orderPoison(b Block, h *handed, s Stream) error {
	if r, ok := As[StreamRecorder](p.Allocator); ok {
		if err := r.RecordStream(inner(b), s); !errors.Is(err, errors.ErrUnsupported) {
			h.shared = true
			return err
		}
	}
	_, err := p.filler.Differing(b.Addr-redzone, redzoneValue, redzone, s)
	return err
}

// orderUsers implements userOrderer.
func (p *Poison) orderUsers(b Block, s Stream) error {
	o, ok := As[userOrderer](p.Allocator)
	if !ok {
		return errors.ErrUnsupported
	}
	return o.orderUsers(inner(b), s)
}

// RecordStream implements [StreamRecorder] if the wrapped allocator does.
func (p *Poison) RecordStream(b Block, s Stream) error {
	r, ok := As[StreamRecorder](p.Allocator)
	if !ok {
		return errors.ErrUnsupported
	}
	if err := r.RecordStream(inner(b), s); err != nil {
		return err
	}
	return p.blocks.share(b)
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

// Close implements [Allocator]. It waits for the calls in progress.
func (p *Poison) Close() error {
	p.calls.close()
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
