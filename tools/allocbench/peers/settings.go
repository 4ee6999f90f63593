package peers

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

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

// A Conf is a PYTORCH_CUDA_ALLOC_CONF.
type Conf struct {
	Settings
	Expandable bool     // expandable_segments:True
	Ignored    []string // options that are not simulated
}

// ParseConf reads a PYTORCH_CUDA_ALLOC_CONF.
func ParseConf(text string) (c Conf, err error) {
	depth := 0 // of brackets
	options := strings.FieldsFunc(text, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == ',' && depth == 0
	})
	for _, option := range options {
		option = strings.ReplaceAll(option, " ", "")
		key, value, _ := strings.Cut(option, ":")
		n, notNumber := strconv.ParseInt(value, 10, 43)
		switch {
		case option == "":
		case key == "expandable_segments" && (value == "True" || value == "False"):
			c.Expandable = value == "True"
		case key == "max_split_size_mb" && notNumber == nil && n > 0:
			c.MaxSplitBytes = n << 20
		case key == "roundup_power2_divisions" && notNumber == nil && n >= 0 && n&(n-1) == 0:
			c.RoundUpDivisions = n
		case key == "expandable_segments", key == "max_split_size_mb", key == "roundup_power2_divisions" && !strings.HasPrefix(value, "["):
			return c, fmt.Errorf("%.40q is no option of PYTORCH_CUDA_ALLOC_CONF", option)
		case key == "garbage_collection_threshold": // a share of a limit in bytes that no recording tells
			c.Ignored = append(c.Ignored, option+" (a share of set_per_process_memory_fraction)")
		default:
			c.Ignored = append(c.Ignored, option)
		}
	}
	return c, nil
}

// tooLong reports whether a large free block is too long for a request of size bytes.
func (o Settings) tooLong(block, size int64) bool {
	most := o.MaxSplitBytes
	return most > 0 && (size < most && block >= most || size >= most && block >= size+largeSegmentBytes)
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
	for threshold > 0 && c.reserved > threshold {
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
