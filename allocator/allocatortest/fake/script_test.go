package fake

import (
	"errors"
	"strings"
	"testing"
)

const page = 4096

// A script makes calls of a Device with 4096 bytes of Malloc, a range of 8 pages, memory of
// 1 and of 2 pages, and nothing mapped. It joins what they return to err.
type script struct {
	*Device
	memory   uintptr // of Malloc
	addr     uintptr // of the range
	one, two uintptr // pages
	event    uintptr
	err      error
}

func newScript(t *testing.T, f *Device) *script {
	t.Helper()
	size, err := f.WithPages(page).PageSize()
	if err != nil || size != page {
		t.Fatalf("pages of %d bytes, %v", size, err)
	}
	s := &script{Device: f}
	for stream := range uintptr(4) {
		f.CreateStream(stream)
	}
	var errs [5]error
	s.memory, errs[0] = f.Malloc(4096)
	s.addr, errs[1] = f.ReserveRange(8 * page)
	s.one, errs[2] = f.CreatePages(page)
	s.two, errs[3] = f.CreatePages(2 * page)
	s.event, errs[4] = f.NewEvent()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return s
}

// at returns the address of a page of the range.
func (s *script) at(i int) uintptr { return s.addr + uintptr(i*page) }

func (s *script) keep(errs ...error) { s.err = errors.Join(s.err, errors.Join(errs...)) }

func (s *script) mapOne(at int)   { s.keep(s.MapPages(s.at(at), s.one, page)) }
func (s *script) mapTwo(at int)   { s.keep(s.MapPages(s.at(at), s.two, 2*page)) }
func (s *script) unmap(at, n int) { s.keep(s.UnmapPages(s.at(at), int64(n*page))) }

// use is work of a stream for an owner on n pages.
func (s *script) use(at, n int, stream uintptr, owner uint64) {
	s.keep(s.Use(s.at(at), int64(n*page), stream, owner))
}

// work is work of a stream for an owner on bytes of Malloc.
func (s *script) work(at, n int64, stream uintptr, owner uint64) {
	s.keep(s.Use(s.memory+uintptr(at), n, stream, owner))
}

// handOut tells of a block on pages that is handed out for stream 1.
func (s *script) handOut(addr uintptr, size int64) Owner {
	o, err := s.HandedOut(addr, size, 1)
	s.keep(err)
	return o
}

// A faultCase is a script and what its fault says; "" is none.
type faultCase struct {
	name, want string
	run        func(s *script)
}

// checkFaults runs scripts, each on a device of its own.
func checkFaults(t *testing.T, device func() *Device, cases []faultCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t, device())
			c.run(s)
			if faults := s.Faults(); (faults == nil) != (s.err == nil) || (s.FirstFault() == nil) != (faults == nil) {
				t.Errorf("returned %v, kept %v", s.err, faults)
			}
			switch {
			case c.want == "" && s.err != nil:
				t.Errorf("fault without reason: %v", s.err)
			case c.want != "" && (s.err == nil || !strings.Contains(s.err.Error(), c.want)):
				t.Errorf("got %v, want a fault that says %q", s.err, c.want)
			}
		})
	}
}

func usual() *Device  { return New(1 << 20) }
func strict() *Device { return New(1 << 20).Strict() }
