package fake

import (
	"bytes"
	"testing"
)

// TestHostCopies copies the contents of two extents to the host, and back after they were released.
func TestHostCopies(t *testing.T) {
	s := newScript(t, strict())
	s.mapOne(0)
	s.mapTwo(1)
	o := s.handOut(s.at(0)+256, 2*page)
	want := bytes.Repeat([]byte("abcdefg"), 2*page/7)
	s.keep(s.Write(s.at(0)+256, want), s.Fill(s.at(2)+1024, 7, 256, 1))
	s.Synchronize()

	host, err := s.MallocHost(3 * page)
	s.keep(err, s.CopyToHost(host+512, s.at(0)+256, 2*page))
	s.Sleep()
	s.unmap(0, 1)
	s.unmap(1, 2)
	s.keep(s.ReleasePages(s.one), s.ReleasePages(s.two))
	s.one, err = s.CreatePages(page)
	s.keep(err)
	s.two, err = s.CreatePages(2 * page)
	s.keep(err)
	s.mapOne(0)
	s.mapTwo(1)
	s.keep(s.Device.Wake(), s.CopyFromHost(s.at(0)+512, host+768, 2*page-256))

	got, err := s.Read(s.at(0)+256, int64(len(want)))
	if s.keep(err); !bytes.Equal(got[256:], want[256:]) || bytes.Count(got[:256], []byte{0}) != 256 {
		t.Error("a copy has other contents, or is elsewhere")
	}
	s.keep(s.Work(o, 1), s.FreeHost(host))
	if s.err != nil {
		t.Error(s.err)
	}
}

func TestHostFaults(t *testing.T) {
	onHost := func(s *script) (host uintptr) {
		s.mapOne(0)
		host, err := s.MallocHost(page)
		s.keep(err)
		return host
	}
	checkFaults(t, strict, []faultCase{
		{"no bytes", "MallocHost of 0 bytes", func(s *script) { _, err := s.MallocHost(0); s.keep(err) }},
		{"freed twice", "FreeHost of", func(s *script) { host := onHost(s); s.keep(s.FreeHost(host), s.FreeHost(host)) }},
		{"beyond host memory", "of the host, of which some are not allocated", func(s *script) {
			s.keep(s.CopyToHost(onHost(s)+256, s.at(0), page))
		}},
		{"beyond mapped memory", "of which some are not allocated", func(s *script) {
			s.keep(s.CopyFromHost(s.at(0)+256, onHost(s), page))
		}},
		{"during work", "which stream 0x1 may still use", func(s *script) {
			host := onHost(s)
			s.handOut(s.at(0), 256)
			s.keep(s.CopyToHost(host, s.at(0), page))
		}},
		{"unmapped under a live block", "is handed out", func(s *script) {
			onHost(s)
			s.handOut(s.at(0), 256)
			s.Synchronize()
			s.unmap(0, 1)
		}},
		{"not mapped after Wake", "is handed out after Wake", func(s *script) {
			onHost(s)
			s.handOut(s.at(0), 256)
			s.Synchronize()
			s.Sleep()
			s.unmap(0, 1)
			s.keep(s.Device.Wake())
		}},
		{"overlapping after Wake", "overlaps the block", func(s *script) {
			onHost(s)
			s.handOut(s.at(0), 256)
			s.Synchronize()
			s.Sleep()
			s.unmap(0, 1)
			s.keep(s.ReleasePages(s.one))
			var err error
			s.one, err = s.CreatePages(page)
			s.keep(err)
			s.mapOne(0)
			s.keep(s.Device.Wake())
			s.handOut(s.at(0), 256)
		}},
	})
}
