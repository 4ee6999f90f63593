package fake

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRuns compares runs with one value for each byte.
func TestRuns(t *testing.T) {
	const size = 40
	random := rand.New(rand.NewPCG(3, 4))
	var want [size]int
	r := newRuns[int](size)
	for i := range 2000 {
		lo := random.IntN(size)
		hi := lo + 1 + random.IntN(size-lo)
		r = r.set(int64(lo), int64(hi), i)
		for k := lo; k < hi; k++ {
			want[k] = i
		}
		var got []int
		for p := range r.over(0, size) {
			got = append(got, slices.Repeat([]int{p.value}, int(p.hi-p.lo))...)
		}
		if !slices.Equal(got, want[:]) {
			t.Fatalf("after set %d from %d to %d: %v, want %v", i, lo, hi, got, want)
		}
	}
}

// TestPageContents writes through one address and reads through another.
func TestPageContents(t *testing.T) {
	s := newScript(t, usual())
	s.mapOne(0)
	s.mapTwo(1)
	s.mapOne(6)
	want := bytes.Repeat([]byte("abcdefg"), 3*page/7)
	s.keep(s.Write(s.at(0), want))
	got, err := s.Read(s.at(6), page)
	if s.keep(err); !bytes.Equal(got, want[:page]) {
		t.Error("the same memory has other bytes at a second address")
	}
	s.keep(s.Fill(s.at(6)+8, 7, page-8, 1))
	got, err = s.Read(s.at(0)+4, page)
	if s.keep(err); !bytes.Equal(got[:4], want[4:8]) || got[4] != 7 || !bytes.Equal(got[page-4:], want[page:page+4]) {
		t.Error("a fill through the second address is not seen through the first, or filled too much")
	}
	s.keep(s.Fill(s.at(0), 9, 3*page, 1))
	s.keep(s.Fill(s.at(6)+16, 1, 8, 1))
	n, err := s.Differing(s.at(0), 9, 3*page, 1)
	if s.keep(err); n != 2 {
		t.Errorf("%d words differ, want 2", n)
	}
	s.Synchronize()
	s.unmap(0, 1)
	s.mapOne(3)
	got, err = s.Read(s.at(3)+16, 4)
	if s.keep(err); !bytes.Equal(got, []byte{1, 0, 0, 0}) {
		t.Errorf("moved memory holds %v", got)
	}
	if s.err != nil {
		t.Error(s.err)
	}
}

// TestSetBytes counts the bytes of a range that are not the last ones set there.
func TestSetBytes(t *testing.T) {
	s := newScript(t, usual())
	s.mapOne(0)
	s.mapTwo(1)
	s.keep(s.Set(s.at(0)+5, 7, 2*page))
	s.keep(s.Set(s.at(0)+page-1, 8, 3))
	s.keep(s.Write(s.at(0)+page+9, []byte{7, 9}))
	for _, c := range []struct {
		from  uintptr
		value byte
		bytes int64
		want  int64
	}{
		{5, 7, 2 * page, 4},
		{0, 7, 6, 5},
		{0, 0, 6, 1},
		{page - 1, 8, 3, 0},
		{page - 1, 8, 4, 1},
		{page + 9, 9, 2, 1},
		{9, 7, 0, 0},
	} {
		if n, err := s.Other(s.at(0)+c.from, c.value, c.bytes); err != nil || n != c.want {
			t.Errorf("%d of %d bytes from %d on are not %d, want %d; %v", n, c.bytes, c.from, c.value, c.want, err)
		}
	}
	if s.err != nil {
		t.Error(s.err)
	}
	s = newScript(t, usual())
	s.mapOne(0)
	if err := s.Set(s.at(0), 1, page+1); err == nil {
		t.Error("bytes beyond the memory are set")
	}
	if _, err := s.Other(s.at(0), 1, page+1); err == nil {
		t.Error("bytes beyond the memory are read")
	}
}
