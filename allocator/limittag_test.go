package allocator_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestLimitOfTag makes calls of a Limit with limits of tags.
func TestLimitOfTag(t *testing.T) {
	const unit = allocator.Alignment
	type call struct {
		tag   string
		units int64 // to allocate; 0: free the oldest block of the tag; -1: set its limit
		most  int64 // the new limit, in units
		fails string
	}
	set := func(tag string, most int64) call { return call{tag, -1, most, ""} }
	for _, c := range []struct {
		name  string
		most  int64 // of all, in units
		calls []call
	}{
		{"below and at the limit", 100, []call{set("a", 3), {"a", 2, 0, ""}, {"a", 1, 0, ""}}},
		{"beyond the limit", 100, []call{set("a", 3), {"a", 2, 0, ""}, {"a", 2, 0, `tag "a"`}, {"a", 1, 0, ""}}},
		{"of freed blocks", 100, []call{set("a", 3), {"a", 3, 0, ""}, {"a", 1, 0, `tag "a"`}, {"a", 0, 0, ""}, {"a", 3, 0, ""}}},
		{"of another tag", 100, []call{set("a", 3), {"b", 50, 0, ""}, {"", 5, 0, ""}, {"a", 3, 0, ""}}},
		{"of two tags", 100, []call{set("a", 3), set("b", 2), {"a", 3, 0, ""}, {"b", 3, 0, `tag "b"`}, {"b", 2, 0, ""}}},
		{"of the empty tag", 100, []call{set("", 3), {"", 4, 0, `tag ""`}, {"a", 4, 0, ""}}},
		{"beyond that of all", 4, []call{set("a", 30), {"a", 3, 0, ""}, {"a", 2, 0, "the limit is reached"}, {"a", 1, 0, ""}}},
		{"refused by all, then free", 4, []call{set("a", 5), {"b", 3, 0, ""}, {"a", 4, 0, "the limit is reached"}, {"b", 0, 0, ""}, {"a", 4, 0, ""}}},
		{"alone", math.MaxInt64 / unit, []call{set("a", 3), {"b", 4000, 0, ""}, {"a", 4, 0, `tag "a"`}}},
		{"zero", 100, []call{set("a", 0), {"a", 1, 0, `tag "a"`}}},
		{"negative", 100, []call{{"a", 1, 0, ""}, set("a", math.MinInt64/unit), {"a", 1, 0, `tag "a"`}}},
		{"none", 100, []call{set("a", math.MaxInt64/unit), {"a", 60, 0, ""}, {"a", 40, 0, ""}}},
		{"lowered", 100, []call{set("a", 9), {"a", 6, 0, ""}, set("a", 3), {"a", 1, 0, `tag "a"`}, {"a", 0, 0, ""}, {"a", 3, 0, ""}}},
		{"raised", 100, []call{set("a", 3), {"a", 3, 0, ""}, set("a", 4), {"a", 1, 0, ""}, {"a", 1, 0, `tag "a"`}}},
		{"of blocks from before", 100, []call{{"a", 6, 0, ""}, set("a", 3), {"a", 3, 0, ""}, {"a", 0, 0, ""}, {"a", 1, 0, `tag "a"`}}},
	} {
		for _, inner := range []string{"pool", "trace", "foreign", "poison"} {
			t.Run(inner+"/"+c.name, func(t *testing.T) {
				f := allocatortest.NewFake(deviceBytes)
				var a allocator.Allocator = newPool(t, f, allocator.PoolOptions{})
				switch inner {
				case "trace":
					a = allocator.NewTrace(a, 9)
				case "foreign":
					a = foreign{a}
				case "poison":
					a = allocator.NewPoison(a, f)
				}
				most := c.most * unit
				if c.most == math.MaxInt64/unit {
					most = math.MaxInt64
				}
				l := allocator.NewLimit(a, most)
				live := map[string][]allocator.Block{}
				for i, c := range c.calls {
					switch {
					case c.units < 0:
						l.SetTag(c.tag, c.most*unit)
						continue
					case c.units == 0:
						must.OK(t, l.Free(live[c.tag][0], 1))
						live[c.tag] = live[c.tag][1:]
						continue
					}
					b, err := l.Alloc(c.units*unit, 1, c.tag)
					var oom *allocator.OutOfMemoryError
					switch {
					case c.fails == "":
						must.OK(t, err)
						live[c.tag] = append(live[c.tag], b)
					case !errors.As(err, &oom) || !oom.AtLimit() || oom.Tag != c.tag || oom.Advice == "":
						t.Fatalf("call %d: %v, want an OutOfMemoryError", i, err)
					case !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "\n"):
						t.Errorf("call %d: %v, want %s", i, err, c.fails)
					}
				}
				for _, blocks := range live {
					for _, b := range blocks {
						must.OK(t, l.Free(b, 1))
						if err := l.Free(b, 1); err == nil {
							t.Error("a block is freed twice")
						}
					}
				}
				f.Synchronize()
				must.OK(t, l.Close(), f.Faults(), f.Leftover())
			})
		}
	}
}

// TestLimitOfTagThreads changes limits while goroutines use them. In the end each tag has its whole limit.
func TestLimitOfTagThreads(t *testing.T) {
	const unit, most = allocator.Alignment, 20
	l := allocator.NewLimit(newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{}), math.MaxInt64)
	tags := []string{"a", "b", "c", ""}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			on := allocator.Stream(i)
			var blocks []allocator.Block
			for range fewer(2000) {
				switch tag := tags[random.IntN(len(tags))]; {
				case random.IntN(20) == 0:
					l.SetTag(tag, random.Int64N(most)*unit)
				case random.IntN(2) == 0 && len(blocks) > 0:
					last := len(blocks) - 1
					if err := l.Free(blocks[last], on); err != nil {
						t.Error(err)
					}
					blocks = blocks[:last]
				default:
					b, err := l.Alloc(random.Int64N(5*unit), on, tag)
					if err == nil {
						blocks = append(blocks, b)
					} else if !errors.As(err, new(*allocator.OutOfMemoryError)) {
						t.Error(err)
					}
				}
			}
			for _, b := range blocks {
				if err := l.Free(b, on); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, tag := range tags {
		l.SetTag(tag, most*unit)
		b, err := l.Alloc(most*unit, 1, tag)
		must.OK(t, err)
		if _, err := l.Alloc(1, 1, tag); err == nil {
			t.Errorf("tag %q has more than its limit", tag)
		}
		must.OK(t, l.Free(b, 1))
	}
	must.OK(t, l.Close())
}
