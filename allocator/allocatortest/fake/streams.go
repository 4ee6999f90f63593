package fake

// A clock has, for each slot of the stream table, how much work of that stream came
// before. Slots beyond its length have none.
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

// A stream is a slot of the stream table. Another stream may take the slot of a destroyed
// one once the host knows that its work is done.
type stream struct {
	handle uintptr
	exists bool
	id     uint32 // unique; StreamReleased changes it
	seen   clock  // work that comes before its next work, its own included
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
	finished  clock  // work that the device finished
	learned   int
	events    []event
	existing  int // events
}

// slot returns the slot of stream s. Every stream exists until it is destroyed, unless the
// device is Strict.
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

// CreateStream creates stream s, which may have existed before.
func (f *order) CreateStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.destroyed, s)
	f.create(s)
}

// DestroyStream makes every later call with s a fault. Work queued on s still completes.
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

// StreamID returns a unique number of stream s, which changes when s is released or
// destroyed. It is 0 if s does not exist.
func (f *order) StreamID(s uintptr) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("RecordStream", s)
	if err != nil {
		return 0
	}
	return f.streams[i].id
}

// learn tells the host that the work in c is done.
func (f *order) learn(c clock) {
	if c.beyond(f.host, f.host) >= 0 {
		f.learned++
		f.host.join(c)
	}
}

// Learned returns how often the host learned that more work is done.
func (f *order) Learned() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.learned
}

// Finish makes the device finish all queued work. The host learns of it when it queries
// an event.
func (f *order) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.streams {
		f.finished.join(f.streams[i].seen)
	}
}

// SyncStream makes the host wait for the work of stream s.
func (f *order) SyncStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, err := f.slot("SyncStream", s); err == nil {
		f.learn(f.streams[i].seen)
	}
}

// Synchronize makes the host wait for all work.
func (f *order) Synchronize() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.streams {
		f.learn(f.streams[i].seen)
	}
}

// Order makes stream to wait for the work queued on stream from so far.
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
