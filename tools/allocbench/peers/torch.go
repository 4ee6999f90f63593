package peers

import "mlpool/allocator"

// The sizes of PyTorch, in bytes: kMinBlockSize, kSmallSize, kSmallBuffer,
// kLargeBuffer (large_segment_size_mb, if not set), kMinLargeAlloc, kRoundLarge.
const (
	minBlockBytes     = 512
	smallBytes        = 1 << 20
	smallSegmentBytes = 2 << 20
	largeSegmentBytes = 20 << 20
	minWholeBytes     = 10 << 20
	wholeUnitBytes    = 2 << 20
)

// torch grows PyTorch's allocator by cudaMalloc.
type torch struct{ *cache }

// Torch returns the caching allocator of PyTorch 2.11 with settings o, over d.
// Its rules are those of c10/cuda/CUDACachingAllocator.cpp, with the functions in
// parentheses:
//
//   - A request is rounded up to 512 bytes (round_size).
//   - The small pool serves it up to 1 MiB, the large one beyond. No block moves to
//     another stream (get_pool, BlockComparatorSize).
//   - The smallest free block of the stream that is large enough serves it, the
//     lowest of equal ones (get_free_block).
//   - If there is none, a segment is allocated: 2 MiB for the small pool, 20 MiB for
//     less than 10 MiB, else the size rounded up to 2 MiB (get_allocation_size).
//   - A block is split if at least 512 bytes remain in the small pool, or more than
//     1 MiB in the large one (should_split).
//   - A freed block is coalesced with its free neighbours at once (free_block,
//     try_merge_blocks). If other streams were recorded, an event is recorded on
//     each, and the block is free once a later request finds all of them done
//     (recordStream, insert_events, process_events).
//   - If the driver has no memory, the allocator waits for all events, releases all
//     segments that are a single free block, and asks once more (malloc,
//     release_cached_blocks).
//   - A captured graph has pools of its own (PrivatePool). Their segments are released with the
//     graph, here at the end.
//
// Settings changes these rules. The search for one large block to release before all are released,
// if the driver has no memory and MaxSplitBytes is set, is left out.
//
// The driver chooses the segments' addresses, and with them which of equal blocks is the
// lowest. Two of the five jobs in tools/traces/testdata depend on that: over 200 random
// orders of the segments they reserve from 4.8 % less (transformer) to 0.1 % more (cache)
// than PyTorch 2.11 on an H200 (assets/recorded_torch_h200.json), with rising addresses
// 2.6 % and 2.2 % less, with falling ones the same and 0.1 % less. The others reserve what
// PyTorch does in any order. So measure on a device whose addresses fall.
//
// Streams must live longer than the peer, as PyTorch's do.
func Torch(d allocator.Driver, o Settings) Peer {
	c := newCache(d, o)
	c.growth = &torch{c}
	return c
}

func (t *torch) fit(p *pool, s allocator.Stream, size int64) *block {
	i := p.free.from(&block{stream: s, size: size})
	if i == len(p.free.blocks) || p.free.blocks[i].stream != s {
		return nil
	}
	b := p.free.blocks[i]
	if !p.small && t.settings.tooLong(b.size, size) {
		return nil
	}
	p.take(b)
	return b
}

func (t *torch) grow(p *pool, s allocator.Stream, size int64) (*block, error) {
	bytes := roundUp(size, wholeUnitBytes)
	switch {
	case p.small:
		bytes = smallSegmentBytes
	case size < minWholeBytes:
		bytes = largeSegmentBytes
	}
	addr, err := t.Malloc(bytes)
	if err != nil {
		return nil, err
	}
	t.hold(bytes)
	return &block{pool: p, stream: s, addr: addr, size: bytes, free: true, mapped: true}, nil
}

func (t *torch) splits(p *pool, size, rest int64) bool {
	if p.small {
		return rest >= minBlockBytes
	}
	return rest > smallBytes && (t.settings.MaxSplitBytes == 0 || size < t.settings.MaxSplitBytes)
}

func (t *torch) release(b *block) error {
	if !b.whole() {
		return nil
	}
	if err := t.drain(b.stream); err != nil {
		return err
	}
	if err := t.Free(b.addr); err != nil {
		return err
	}
	b.pool.take(b)
	t.hold(-b.size)
	return nil
}
