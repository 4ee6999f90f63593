package fake

import "testing"

// TestPages shows what a Device reports of pages, and what it lets pass.
func TestPages(t *testing.T) { checkFaults(t, usual, pageCases) }

var pageCases = []faultCase{
	{"block over two mappings", "", func(s *script) { s.mapTwo(1); s.mapOne(0); s.use(0, 3, 1, 100); s.use(0, 3, 1, 100) }},
	{"block over a wrapped mapping", "", func(s *script) { s.mapTwo(0); s.mapTwo(2); s.use(1, 2, 1, 100) }},
	{"mapped but for the end", "not allocated", func(s *script) { s.mapTwo(0); s.use(1, 2, 1, 100) }},
	{"mapped but for the start", "not allocated", func(s *script) { s.mapTwo(1); s.use(0, 2, 1, 100) }},
	{"read of what is not mapped", "not allocated", func(s *script) {
		s.mapOne(0)
		_, err := s.Read(s.at(0), page+1)
		s.keep(err)
	}},
	{"write to what is not mapped", "not allocated", func(s *script) { s.mapOne(0); s.keep(s.Write(s.at(1)-1, []byte{1, 2})) }},
	{"fill of what is not mapped", "not allocated", func(s *script) { s.mapOne(0); s.keep(s.Fill(s.at(0), 0, 2*page, 1)) }},
	{"comparison of what is not mapped", "not allocated", func(s *script) {
		_, err := s.Differing(s.at(0), 0, page, 1)
		s.keep(err)
	}},
	{"the same memory twice in a block", "the same memory twice", func(s *script) {
		s.mapTwo(0)
		s.mapTwo(2)
		s.use(0, 3, 1, 100)
	}},

	{"second address without order", "not ordered", func(s *script) {
		s.mapTwo(0)
		s.mapTwo(4)
		s.use(0, 1, 1, 100)
		s.use(4, 1, 2, 200)
	}},
	{"second address after UnmapPages, without order", "not ordered", func(s *script) {
		s.mapTwo(4)
		s.mapTwo(0)
		s.use(0, 2, 1, 100)
		s.use(4, 2, 3, 100)
		s.Order(1, 3)
		s.keep(s.RecordEvent(s.event, 1), s.SyncEvent(s.event))
		s.unmap(0, 2)
		s.use(4, 2, 2, 200)
	}},
	{"second address of other bytes", "", func(s *script) {
		s.mapTwo(0)
		s.mapTwo(4)
		s.use(0, 1, 1, 100)
		s.use(5, 1, 2, 200)
	}},
	{"overlap at a second address", "overlaps", func(s *script) {
		s.mapTwo(0)
		s.mapTwo(4)
		s.handOut(s.at(0), page+1)
		s.handOut(s.at(5), page)
	}},

	{"unmapped in use by one of two streams", "may still use", func(s *script) {
		s.mapOne(0)
		s.use(0, 1, 1, 100)
		s.use(0, 1, 2, 100)
		s.keep(s.RecordEvent(s.event, 2), s.SyncEvent(s.event))
		s.unmap(0, 1)
	}},
	{"unmapped when done, but not seen to be", "may still use", func(s *script) {
		s.mapOne(0)
		s.use(0, 1, 1, 100)
		s.Finish()
		s.unmap(0, 1)
	}},
	{"unmapped while used through another address", "", func(s *script) {
		s.mapOne(0)
		s.mapOne(1)
		s.use(1, 1, 1, 100)
		s.unmap(0, 1)
		s.use(1, 1, 1, 100)
	}},
	{"unmapped in part", "no MapPages", func(s *script) { s.mapTwo(0); s.unmap(0, 1) }},
	{"unmapped twice", "no MapPages", func(s *script) { s.mapOne(0); s.unmap(0, 1); s.unmap(0, 1) }},
	{"memory of Malloc unmapped", "no MapPages", func(s *script) {
		addr, err := s.Malloc(page)
		s.keep(err, s.UnmapPages(addr, page))
	}},
	{"mapped pages freed", "not allocated", func(s *script) { s.mapOne(0); s.keep(s.Free(s.addr)) }},

	{"mapped over what is mapped", "are mapped at", func(s *script) { s.mapOne(1); s.mapTwo(0) }},
	{"mapped within what is mapped", "are mapped at", func(s *script) { s.mapTwo(0); s.mapOne(1) }},
	{"mapped below the range", "not in one reserved", func(s *script) { s.mapOne(-1) }},
	{"mapped beyond the range", "not in one reserved", func(s *script) { s.mapTwo(7) }},
	{"mapped in a released range", "not in one reserved", func(s *script) {
		s.keep(s.ReleaseRange(s.addr, 8*page))
		s.mapOne(0)
	}},
	{"mapped misaligned", "not aligned", func(s *script) { s.keep(s.MapPages(s.addr+256, s.one, page)) }},
	{"mapped in part", "which have 8192", func(s *script) { s.keep(s.MapPages(s.addr, s.two, page)) }},
	{"mapped beyond the memory", "which have 4096", func(s *script) { s.keep(s.MapPages(s.addr, s.one, 2*page)) }},
	{"unknown pages mapped", "do not exist", func(s *script) { s.keep(s.MapPages(s.addr, 77, page)) }},

	{"mapped pages released", "mapped 2 times", func(s *script) { s.mapOne(0); s.mapOne(1); s.keep(s.ReleasePages(s.one)) }},
	{"pages released twice", "do not exist", func(s *script) { s.keep(s.ReleasePages(s.one), s.ReleasePages(s.one)) }},
	{"range with a mapping released", "mapped at", func(s *script) { s.mapOne(7); s.keep(s.ReleaseRange(s.addr, 8*page)) }},
	{"range released in part", "no reserved range", func(s *script) { s.keep(s.ReleaseRange(s.addr, page)) }},
	{"no range", "whole pages", func(s *script) { _, err := s.ReserveRange(0); s.keep(err) }},
	{"negative pages", "whole pages", func(s *script) { _, err := s.CreatePages(-page); s.keep(err) }},
	{"odd bytes mapped", "whole pages", func(s *script) { s.keep(s.MapPages(s.addr, s.one, page/2)) }},
	{"odd bytes unmapped", "whole pages", func(s *script) { s.keep(s.UnmapPages(s.addr, page/2)) }},

	{"unmapped before the end of a later use", "stream 0x2 may still use", func(s *script) {
		s.mapOne(0)
		o := s.handOut(s.at(0), 256)
		s.keep(s.Work(o, 2))
		s.Freed(o)
		s.SyncStream(1)
		s.unmap(0, 1)
	}},
	{"unmapped where another stream used the memory elsewhere since", "stream 0x1 may still use", func(s *script) {
		s.mapOne(0)
		s.mapOne(1)
		s.use(0, 1, 1, 100)
		s.Order(1, 2)
		s.use(1, 1, 2, 200)
		s.unmap(0, 1)
	}},
}

// TestStrictPages shows what only a Strict device reports.
func TestStrictPages(t *testing.T) {
	checkFaults(t, strict, []faultCase{
		{"unmapped under a block", "is handed out", func(s *script) {
			s.mapOne(0)
			s.handOut(s.at(0), 256)
			s.Synchronize()
			s.unmap(0, 1)
		}},
		{"unmapped under the end of a block", "is handed out", func(s *script) {
			s.mapTwo(0)
			s.mapOne(2)
			s.handOut(s.at(2)-256, 512)
			s.Synchronize()
			s.unmap(2, 1)
		}},
		{"the same memory handed out elsewhere", "", func(s *script) {
			s.mapTwo(0)
			s.mapTwo(2)
			s.handOut(s.at(0), 256)
			s.unmap(2, 2)
		}},
		{"mapped over the end of a range into the next", "not in one reserved range", func(s *script) {
			if _, err := s.ReserveRange(page); err != nil {
				s.keep(err)
			}
			s.mapTwo(7)
		}},
	})
}
