package fake

import (
	"errors"
	"testing"
)

// TestOrder uses memory for one owner and then for another, in ways that order the two
// and in ways that do not.
func TestOrder(t *testing.T) { checkFaults(t, usual, orderCases) }

var orderCases = []faultCase{
	{"use after a use by another", "not ordered after the last work", func(s *script) {
		s.work(0, 512, 1, 100)
		s.work(256, 512, 2, 200)
	}},
	{"order before the last use", "not ordered", func(s *script) {
		s.work(0, 512, 1, 100)
		s.Order(1, 2)
		s.work(0, 512, 1, 100)
		s.work(0, 512, 2, 200)
	}},
	{"finished but not seen to be", "not ordered", func(s *script) {
		s.work(0, 512, 1, 100)
		s.Finish()
		s.work(0, 512, 2, 200)
	}},
	{"finished and seen to be", "", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.RecordEvent(s.event, 1))
		early, err1 := s.QueryEvent(s.event)
		s.Finish()
		late, err2 := s.QueryEvent(s.event)
		if s.keep(err1, err2); early || !late {
			s.keep(errors.New("QueryEvent is wrong"))
		}
		s.work(0, 512, 2, 200)
	}},
	{"event waited for before it is recorded", "not ordered", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.WaitEvent(2, s.event), s.RecordEvent(s.event, 1))
		s.work(0, 512, 2, 200)
	}},
	{"event waited for on the device", "", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.RecordEvent(s.event, 1), s.WaitEvent(2, s.event))
		s.work(256, 512, 2, 200)
	}},
	{"event waited for on the host", "", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.RecordEvent(s.event, 1), s.SyncEvent(s.event))
		s.work(0, 512, 2, 200)
	}},
	{"event waited for through a third stream", "", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.RecordEvent(s.event, 1), s.WaitEvent(3, s.event), s.RecordEvent(s.event, 3), s.WaitEvent(2, s.event))
		s.work(0, 512, 2, 200)
	}},
	{"the bytes before a later use", "not ordered", func(s *script) {
		s.work(0, 100, 2, 10)
		s.work(40, 20, 2, 20)
		s.work(0, 40, 3, 30)
	}},
	{"both streams of an owner", "not ordered", func(s *script) {
		s.work(0, 100, 2, 10)
		s.work(0, 100, 1, 10)
		s.Order(1, 3)
		s.work(0, 1, 3, 30)
	}},
	{"all bytes of an owner", "not ordered", func(s *script) {
		s.work(0, 50, 1, 10)
		s.work(0, 100, 2, 10)
		s.Order(1, 3)
		s.work(99, 1, 3, 30)
	}},
	{"next to each other", "", func(s *script) { s.work(0, 50, 2, 10); s.work(50, 50, 3, 30) }},
}
