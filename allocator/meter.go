package allocator

import "sync/atomic"

// A meter is a Driver that counts its calls.
type meter struct {
	driver         Driver
	calls, mallocs atomic.Int64
}

func (m *meter) Malloc(bytes int64) (uintptr, error) {
	m.calls.Add(1)
	m.mallocs.Add(1)
	return m.driver.Malloc(bytes)
}

func (m *meter) Free(addr uintptr) error {
	m.calls.Add(1)
	return m.driver.Free(addr)
}

func (m *meter) MemInfo() (free, total int64, err error) {
	m.calls.Add(1)
	return m.driver.MemInfo()
}

func (m *meter) NewEvent() (uintptr, error) {
	m.calls.Add(1)
	return m.driver.NewEvent()
}

func (m *meter) RecordEvent(event, stream uintptr) error {
	m.calls.Add(1)
	return m.driver.RecordEvent(event, stream)
}

func (m *meter) QueryEvent(event uintptr) (bool, error) {
	m.calls.Add(1)
	return m.driver.QueryEvent(event)
}

func (m *meter) WaitEvent(stream, event uintptr) error {
	m.calls.Add(1)
	return m.driver.WaitEvent(stream, event)
}

func (m *meter) SyncEvent(event uintptr) error {
	m.calls.Add(1)
	return m.driver.SyncEvent(event)
}

func (m *meter) FreeEvent(event uintptr) error {
	m.calls.Add(1)
	return m.driver.FreeEvent(event)
}
