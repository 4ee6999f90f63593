package fake

import "bytes"

// A content is a repeated word, or written data.
type content struct {
	word    uint32 // little endian; used if data is nil
	data    []byte
	written int64 // the place of data in the extent
}

// at returns the byte at a place of the extent.
func (c content) at(place int64) byte {
	if c.data != nil {
		return c.data[place-c.written]
	}
	return byte(c.word >> (8 * (place % 4)))
}

// Read returns a copy of the bytes at a range of addresses. They are 0 before
// anything is written.
func (f *memory) Read(addr uintptr, n int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, n)
	if !ok {
		return nil, f.fault("%d bytes at %#x are read, of which some are not allocated", n, addr)
	}
	got := make([]byte, 0, n)
	for _, p := range parts {
		for piece := range p.memory.contents.over(p.lo, p.hi) {
			for at := piece.lo; at < piece.hi; at++ {
				got = append(got, piece.value.at(at))
			}
		}
	}
	return got, nil
}

// Write writes data at addr, whoever owns the memory.
func (f *memory) Write(addr uintptr, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, int64(len(data)))
	if !ok {
		return f.fault("%d bytes at %#x are written, of which some are not allocated", len(data), addr)
	}
	data = bytes.Clone(data)
	for _, p := range parts {
		p.memory.contents = p.memory.contents.set(p.lo, p.hi, content{data: data[:p.hi-p.lo], written: p.lo})
		data = data[p.hi-p.lo:]
	}
	return nil
}

// repeated is a byte as a word.
func repeated(value byte) content { return content{word: 0x01010101 * uint32(value)} }

// Set writes n bytes of one value at addr, whoever owns the memory.
func (f *memory) Set(addr uintptr, value byte, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, n)
	if !ok {
		return f.fault("%d bytes at %#x are written, of which some are not allocated", n, addr)
	}
	for _, p := range parts {
		p.memory.contents = p.memory.contents.set(p.lo, p.hi, repeated(value))
	}
	return nil
}

// Other returns how many of n bytes at addr are not value.
func (f *memory) Other(addr uintptr, value byte, n int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, n)
	if !ok {
		return 0, f.fault("%d bytes at %#x are read, of which some are not allocated", n, addr)
	}
	return differing(parts, repeated(value), 1), nil
}

// differing returns how many units of unit bytes of parts are not as in want.
func differing(parts []part, want content, unit int64) (n int64) {
	for _, p := range parts {
		last := int64(-1) // unit that differs
		for piece := range p.memory.contents.over(p.lo, p.hi) {
			if piece.value.data == nil && piece.value.word == want.word {
				continue
			}
			for i := piece.lo; i < piece.hi; i++ {
				if i/unit != last && piece.value.at(i) != want.at(i) {
					last = i / unit
					n++
				}
			}
		}
	}
	return n
}

// Fill implements allocator.Filler. It is work on the memory, and must be ordered after all
// earlier work there.
func (f *memory) Fill(addr uintptr, value uint32, bytes int64, s uintptr) error {
	defer f.mu.Unlock()
	if err := f.words("Fill", addr, bytes, s); err != nil {
		return err
	}
	parts, _ := f.parts(addr, bytes) // words found them
	for _, p := range parts {
		p.memory.contents = p.memory.contents.set(p.lo, p.hi, content{word: value})
	}
	return nil
}

// Differing implements allocator.Filler. It must be ordered as a Fill. The host waits for
// it, so that later work need not be ordered after it.
func (f *memory) Differing(addr uintptr, value uint32, bytes int64, s uintptr) (int64, error) {
	defer f.mu.Unlock()
	if err := f.words("Differing", addr, bytes, s); err != nil {
		return 0, err
	}
	i, err := f.slot("Differing", s)
	if err != nil {
		return 0, err
	}
	f.learn(f.streams[i].seen)
	parts, _ := f.parts(addr, bytes)
	return differing(parts, content{word: value}, 4), nil
}

// words queues the work of a call of a Filler.
func (f *memory) words(name string, addr uintptr, bytes int64, s uintptr) error {
	if err := f.enter(name, addr, uintptr(bytes), s); err != nil {
		return err
	}
	if addr%4 != 0 || bytes%4 != 0 || bytes <= 0 {
		return f.fault("%s of %d bytes at %#x, which are not words", name, bytes, addr)
	}
	i, err := f.slot(name, s)
	if err != nil {
		return err
	}
	o := f.own(addr, bytes, gone)
	err = f.touch(name, addr, bytes, i, o)
	f.forget(o)
	return err
}
