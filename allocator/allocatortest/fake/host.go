package fake

import "slices"

// A hostBuffer is memory of MallocHost.
type hostBuffer struct {
	span
	contents runs[content]
}

// hostBase is the first address of host memory, where no device memory is.
const hostBase = 1 << 52

// MallocHost implements allocator.HostCopier.
func (f *memory) MallocHost(bytes int64) (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enter("MallocHost", uintptr(bytes)); err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, f.fault("MallocHost of %d bytes", bytes)
	}
	addr := firstFit(f.hosts, hostBase, bytes, alignment)
	made := &hostBuffer{span: span{addr, bytes}, contents: newRuns[content](bytes)}
	f.hosts = slices.Insert(f.hosts, search(f.hosts, addr), made)
	return addr, nil
}

// FreeHost implements allocator.HostCopier.
func (f *memory) FreeHost(addr uintptr) error {
	defer f.mu.Unlock()
	if err := f.enter("FreeHost", addr); err != nil {
		return err
	}
	i := search(f.hosts, addr)
	if i == len(f.hosts) || f.hosts[i].addr != addr {
		return f.fault("FreeHost of %#x, which is not allocated", addr)
	}
	f.hosts = slices.Delete(f.hosts, i, i+1)
	return nil
}

// CopyToHost implements allocator.HostCopier. The host must know that all work on the memory is done.
func (f *memory) CopyToHost(host, addr uintptr, bytes int64) error {
	defer f.mu.Unlock()
	if err := f.enter("CopyToHost", host, addr, uintptr(bytes)); err != nil || f.unchecked {
		return err
	}
	to, parts, err := f.copied("CopyToHost", host, addr, bytes)
	if err != nil {
		return err
	}
	at := int64(host - to.addr)
	for _, p := range parts {
		to.contents = copyContents(to.contents, at, p.memory.contents, p.lo, p.hi)
		at += p.hi - p.lo
	}
	return nil
}

// CopyFromHost implements allocator.HostCopier. The host must know that all work on the memory is done.
func (f *memory) CopyFromHost(addr, host uintptr, bytes int64) error {
	defer f.mu.Unlock()
	if err := f.enter("CopyFromHost", addr, host, uintptr(bytes)); err != nil || f.unchecked {
		return err
	}
	from, parts, err := f.copied("CopyFromHost", host, addr, bytes)
	if err != nil {
		return err
	}
	at := int64(host - from.addr)
	for _, p := range parts {
		p.memory.contents = copyContents(p.memory.contents, p.lo, from.contents, at, at+p.hi-p.lo)
		at += p.hi - p.lo
	}
	return nil
}

// copied returns both sides of a copy.
func (f *memory) copied(name string, host, addr uintptr, bytes int64) (*hostBuffer, []part, error) {
	i := search(f.hosts, host)
	if bytes <= 0 || i == len(f.hosts) || host < f.hosts[i].addr || bytes > int64(f.hosts[i].end()-host) {
		return nil, nil, f.fault("%s of %d bytes at %#x of the host, of which some are not allocated", name, bytes, host)
	}
	parts, ok := f.parts(addr, bytes)
	if !ok {
		return nil, nil, f.fault("%s of %d bytes at %#x, of which some are not allocated", name, bytes, addr)
	}
	for _, p := range parts {
		for piece := range p.memory.owners.over(p.lo, p.hi) {
			if i := f.records[piece.value].by.beyond(f.host, f.host); i >= 0 {
				return nil, nil, f.fault("%s of %d bytes at %#x, which stream %#x may still use",
					name, bytes, addr, f.streams[i].handle)
			}
		}
	}
	return f.hosts[i], parts, nil
}

// copyContents gives the bytes of to from at on the contents of the bytes from lo to hi of another.
func copyContents(to runs[content], at int64, from runs[content], lo, hi int64) runs[content] {
	for piece := range from.over(lo, hi) {
		c, end := piece.value, at+piece.hi-piece.lo
		c.written += at - piece.lo
		to = to.set(at, end, c)
		at = end
	}
	return to
}

// Sleep tells the device that an allocator may release the memory of live blocks, and map other memory
// there, until Wake.
func (f *memory) Sleep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asleep = true
}

// IsAsleep reports whether Sleep was called, and no Wake since.
func (f *memory) IsAsleep() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asleep
}

// Wake tells the device that the allocator has mapped memory for all live blocks again.
func (f *memory) Wake() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asleep = false
	for o := range f.records {
		r := &f.records[o]
		if r.state != live {
			continue
		}
		parts, ok := f.parts(r.addr, r.size)
		if !ok {
			return f.fault("the block of %d bytes at %#x is handed out after Wake, and some of them are not allocated",
				r.size, r.addr)
		}
		f.assign(parts, Owner(o))
	}
	return nil
}
