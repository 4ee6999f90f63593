package allocatortest

import "encoding/binary"

// fillOwner is added to the number of a Fill, so that it is no block's.
const fillOwner = 1 << 63

// Fill implements allocator.Filler. It is a use of the memory, so one that is not
// ordered after all that used it before is a fault.
func (f *Fake) Fill(addr uintptr, value uint32, bytes int64, s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.words("Fill", addr, bytes); err != nil {
		return err
	}
	f.fills++
	if err := f.use(addr, bytes, s, fillOwner+f.fills); err != nil {
		return err
	}
	parts, _ := f.parts(addr, bytes) // use found them
	for _, p := range parts {
		memory := p.contents()
		binary.LittleEndian.PutUint32(memory, value)
		for done := 4; done < len(memory); done *= 2 {
			copy(memory[done:], memory[:done])
		}
	}
	return nil
}

// Differing implements allocator.Filler. It must be ordered as a Fill, but as the
// host waits for it, nothing need be ordered after it or what comes before it.
func (f *Fake) Differing(addr uintptr, value uint32, bytes int64, s uintptr) (n int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.words("Differing", addr, bytes); err != nil {
		return 0, err
	}
	parts, err := f.ordered(addr, bytes, s, 0)
	for _, p := range parts {
		for memory := p.contents(); len(memory) > 0; memory = memory[4:] {
			if binary.LittleEndian.Uint32(memory) != value {
				n++
			}
		}
	}
	if err == nil {
		st := f.stream(s)
		f.hostWaited(st.seen)
		f.hostWaited(clock{s: st.now})
	}
	return n, err
}

// words says that the range of the call name, which may be made to fail, is of
// words.
func (f *Fake) words(name string, addr uintptr, bytes int64) error {
	if err := f.enter(name); err != nil {
		return err
	}
	if addr%4 != 0 || bytes%4 != 0 || bytes <= 0 {
		return f.fault("%s of %d bytes at %#x, which are not words", name, bytes, addr)
	}
	return nil
}
