package fake

// NewEvent implements allocator.Driver.
func (f *order) NewEvent() (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enter("NewEvent"); err != nil {
		return 0, err
	}
	f.existing++
	if f.unchecked {
		return uintptr(f.existing), nil
	}
	f.events = append(f.events, event{exists: true})
	return uintptr(len(f.events)), nil
}

// enterEvent is enter for calls on event e, which it returns. An Unchecked device keeps no event.
func (f *order) enterEvent(name string, e uintptr, args ...uintptr) (*event, error) {
	if err := f.enter(name, args...); err != nil || f.unchecked {
		return nil, err
	}
	if e == 0 || e > uintptr(len(f.events)) || !f.events[e-1].exists {
		return nil, f.fault("%s of event %d, which does not exist", name, e)
	}
	return &f.events[e-1], nil
}

// RecordEvent implements allocator.Driver.
func (f *order) RecordEvent(e, s uintptr) error {
	if f.unchecked {
		return nil
	}
	defer f.mu.Unlock()
	ev, err := f.enterEvent("RecordEvent", e, e, s)
	if err != nil {
		return err
	}
	i, err := f.slot("RecordEvent", s)
	if err != nil {
		return err
	}
	ev.marked = append(ev.marked[:0], f.streams[i].seen...)
	return nil
}

// QueryEvent implements allocator.Driver. The host learns what the query finds done.
func (f *order) QueryEvent(e uintptr) (bool, error) {
	if f.unchecked {
		return true, nil
	}
	defer f.mu.Unlock()
	ev, err := f.enterEvent("QueryEvent", e, e)
	if err != nil {
		return false, err
	}
	done := ev.marked.beyond(f.host, f.finished) < 0
	if !done && !f.frozen && f.chance.DoneOneIn > 0 {
		done = f.chance.Random.IntN(f.chance.DoneOneIn) == 0
	}
	if done {
		f.learn(ev.marked)
	}
	f.note("%v", done)
	return done, nil
}

// WaitEvent implements allocator.Driver.
func (f *order) WaitEvent(s, e uintptr) error {
	if f.unchecked {
		return nil
	}
	defer f.mu.Unlock()
	ev, err := f.enterEvent("WaitEvent", e, s, e)
	if err != nil {
		return err
	}
	i, err := f.slot("WaitEvent", s)
	if err != nil {
		return err
	}
	f.streams[i].seen.join(ev.marked)
	return nil
}

// SyncEvent implements allocator.Driver.
func (f *order) SyncEvent(e uintptr) error {
	if f.unchecked {
		return nil
	}
	defer f.mu.Unlock()
	ev, err := f.enterEvent("SyncEvent", e, e)
	if err != nil {
		return err
	}
	f.learn(ev.marked)
	return nil
}

// FreeEvent implements allocator.Driver.
func (f *order) FreeEvent(e uintptr) error {
	defer f.mu.Unlock()
	ev, err := f.enterEvent("FreeEvent", e, e)
	if err != nil || f.unchecked {
		return err
	}
	*ev = event{}
	f.existing--
	return nil
}

// Events returns how many events exist.
func (f *order) Events() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.existing
}
