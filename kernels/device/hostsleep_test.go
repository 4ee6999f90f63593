//go:build linux

package device

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"mlpool/allocator"
	"mlpool/internal/must"
)

// TestSleepOfHostMemory writes to blocks of real memory, also in a stitch, and reads them after the pool
// slept. Meanwhile their addresses have no memory.
func TestSleepOfHostMemory(t *testing.T) {
	d := newMappable(t)
	defer d.close()
	p, err := allocator.NewPool(d.HostDriver, allocator.PoolOptions{MaxBytes: 6 * hostPage})
	must.OK(t, err)
	alloc := func(n int64) allocator.Block {
		b, err := p.Alloc(n, 1, "sleeper")
		must.OK(t, err)
		return b
	}
	var blocks []allocator.Block
	for range 6 {
		blocks = append(blocks, alloc(hostPage))
	}
	must.OK(t, p.Free(blocks[1], 1), p.Free(blocks[4], 1))
	blocks[1], blocks[4] = alloc(3*hostPage/2), alloc(hostPage/4)
	if p.Stats().Stitches != 1 {
		t.Fatalf("no stitch: %+v", p.Stats())
	}
	for _, keep := range []bool{true, false} {
		for i, b := range blocks {
			memory := sliceAt[byte](b.Addr, int(b.Size))
			for k := range memory {
				memory[k] = byte(i + k/1000)
			}
		}
		must.OK(t, p.Sleep(keep))
		var st unix.Stat_t
		if err := unix.Fstat(d.file, &st); err != nil || st.Blocks > 0 {
			t.Errorf("%v, %d blocks of the file are held while asleep", err, st.Blocks)
		}
		for _, b := range blocks {
			if touches(b.Addr) || touches(b.Addr+uintptr(b.Size)-1) {
				t.Errorf("the block at %#x can be read while asleep", b.Addr)
			}
		}
		must.OK(t, p.Wake())
		for i, b := range blocks {
			memory := bytes.Clone(sliceAt[byte](b.Addr, int(b.Size)))
			for k := range memory {
				if want := byte(i + k/1000); keep && memory[k] != want || !keep && memory[k] != 0 {
					t.Fatalf("keep %t: byte %d of block %d is %d", keep, k, i, memory[k])
				}
			}
		}
	}
	for _, b := range blocks {
		must.OK(t, p.Free(b, 1))
	}
	must.OK(t, p.Close())
	if len(d.kept) > 0 {
		t.Errorf("%d pieces of host memory are left", len(d.kept))
	}
}
