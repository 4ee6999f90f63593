package peers

import "math/bits"

// Settings are those of PYTORCH_CUDA_ALLOC_CONF that change which memory is reserved. The zero value has
// PyTorch's defaults.
type Settings struct {
	// MaxSplitBytes is max_split_size_mb in bytes: longer free blocks are not cut, and serve only
	// requests that are at least as long and at most 20 MiB shorter than the block. 0: no limit.
	MaxSplitBytes int64
	// RoundUpDivisions is roundup_power2_divisions: sizes are rounded up to one of so many steps between two
	// powers of two. It is a power of two; 0 rounds to 512 bytes.
	RoundUpDivisions int64
	// GarbageThreshold is garbage_collection_threshold in bytes: the threshold times the limit of
	// set_per_process_memory_fraction. Before memory is requested from the driver while more is
	// reserved, the least recently freed whole segments are released. 0: never.
	GarbageThreshold int64
}

// round returns the size of the block for a request (round_size, roundup_power2_next_division).
func (o Settings) round(bytes int64) int64 {
	if o.RoundUpDivisions <= 1 || bytes <= minBlockBytes*o.RoundUpDivisions {
		return roundUp(bytes, minBlockBytes)
	}
	power := int64(1) << (bits.Len64(uint64(bytes)) - 1)
	return roundUp(bytes, max(power/o.RoundUpDivisions, 1))
}

// collectGarbage releases large segments that are one free block until at most GarbageThreshold bytes are
// reserved (garbage_collect_cached_blocks). In each round it releases all that are at least as old as their
// mean age, in searches for a free large block.
func (c *cache) collectGarbage() error {
	threshold := c.settings.GarbageThreshold
	if threshold == 0 || c.reserved <= threshold {
		return nil
	}
	for c.reserved > threshold {
		var whole []*block
		total := int64(0)
		for _, b := range c.pools[0].free.blocks {
			if b.whole() {
				whole = append(whole, b)
				total += c.searches - b.search
			}
		}
		before := c.reserved
		for _, b := range whole {
			if (c.searches-b.search)*int64(len(whole)) >= total {
				if err := c.release(b); err != nil {
					return err
				}
			}
		}
		if c.reserved == before {
			return nil
		}
	}
	return nil
}
