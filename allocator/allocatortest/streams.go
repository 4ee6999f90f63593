package allocatortest

// A clock says, for each slot of the stream table, how much of that stream's work
// came before. Slots beyond its length have none.
type clock []uint32

func (c clock) at(slot int) uint32 {
	if slot < len(c) {
		return c[slot]
	}
	return 0
}

func (c *clock) set(slot int, t uint32) {
	if *c == nil {
		*c = make(clock, 0, 8) // a few streams are usual
	}
	for len(*c) <= slot {
		*c = append(*c, 0)
	}
	(*c)[slot] = t
}

func (c *clock) join(o clock) {
	for i, t := range o {
		if t > c.at(i) {
			c.set(i, t)
		}
	}
}

// beyond returns a slot with work in c that neither a nor b has, or -1.
func (c clock) beyond(a, b clock) int {
	for i, t := range c {
		if t > a.at(i) && t > b.at(i) {
			return i
		}
	}
	return -1
}

// A stream is a slot of the stream table. A later stream may have the slot once the
// host knows that all work of this one is done.
type stream struct {
	handle uintptr
	exists bool
	id     uint32 // unique; StreamReleased changes it
	seen   clock  // work that what is queued next comes after, its own included
}

// An event marks work of a stream.
type event struct {
	exists bool
	marked clock
}

// An order knows which work comes before which.
type order struct {
	core
	streams   []stream
	destroyed map[uintptr]bool
	ids       uint32 // of streams so far
	host      clock  // work that the host knows to be done
	finished  clock  // work that the device has done
	learned   int
	events    []event
	existing  int // events
}

// slot returns where stream s is. A stream that was never destroyed exists, unless
// the device is Strict.
func (f *order) slot(what string, s uintptr) (int, error) {
	for i := range f.streams {
		if f.streams[i].exists && f.streams[i].handle == s {
			return i, nil
		}
	}
	if f.strict || f.destroyed[s] {
		return 0, f.fault("%s on stream %#x, which does not exist", what, s)
	}
	return f.create(s), nil
}

// create gives a new stream a slot.
func (f *order) create(s uintptr) int {
	f.ids++
	made := stream{handle: s, exists: true, id: f.ids}
	for i := range f.streams {
		if old := &f.streams[i]; !old.exists && old.seen.at(i) <= f.host.at(i) {
			made.seen.set(i, old.seen.at(i))
			*old = made
			return i
		}
	}
	f.streams = append(f.streams, made)
	return len(f.streams) - 1
}

// CreateStream makes stream s, which may have been destroyed before.
func (f *order) CreateStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.destroyed, s)
	f.create(s)
}

// DestroyStream makes every later call with s a fault. The work queued on s goes on.
func (f *order) DestroyStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, err := f.slot("DestroyStream", s); err == nil {
		f.streams[i].exists = false
		f.destroyed[s] = true
	}
}

// StreamReleased tells the device that an allocator released stream s. It is a fault
// if work on s is not known to be done.
func (f *order) StreamReleased(s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("ReleaseStream", s)
	if err != nil {
		return err
	}
	if st := &f.streams[i]; st.seen.at(i) > f.host.at(i) {
		return f.fault("ReleaseStream returned before the work on stream %#x was done", s)
	}
	f.ids++
	f.streams[i].id = f.ids
	return nil
}

// StreamID returns a number that stream s has until it is released or destroyed, and
// that no other stream ever has. It is 0 if there is no such stream.
func (f *order) StreamID(s uintptr) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("RecordStream", s)
	if err != nil {
		return 0
	}
	return f.streams[i].id
}

// learn lets the host know that the work in c is done.
func (f *order) learn(c clock) {
	if c.beyond(f.host, f.host) >= 0 {
		f.learned++
		f.host.join(c)
	}
}

// Learned returns how often the host came to know of more work that is done.
func (f *order) Learned() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.learned
}

// Finish lets the device finish all work that is queued. The host does not know
// before it queries an event.
func (f *order) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.streams {
		f.finished.join(f.streams[i].seen)
	}
}

// SyncStream waits on the host for the work of stream s.
func (f *order) SyncStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, err := f.slot("SyncStream", s); err == nil {
		f.learn(f.streams[i].seen)
	}
}

// Synchronize waits on the host for all work.
func (f *order) Synchronize() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.streams {
		f.learn(f.streams[i].seen)
	}
}

// Order makes stream to wait for the work queued on from so far, as a caller does
// who passes a block from one stream to another.
func (f *order) Order(from, to uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("Order", from)
	if err != nil {
		return
	}
	if k, err := f.slot("Order", to); err == nil {
		f.streams[k].seen.join(f.streams[i].seen)
	}
}
