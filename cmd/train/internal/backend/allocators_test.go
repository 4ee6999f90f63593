package backend

import (
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"

	"mlpool/configs"
)

// TestSegmentsOfDevice asks for each kind on devices with and without page mapping.
func TestSegmentsOfDevice(t *testing.T) {
	const total = 1 << 30
	paged := allocatortest.NewFake(total)
	for _, c := range []struct {
		name, config string
		driver       allocator.Driver
		want, err    string
	}{
		{"default", "", paged, allocator.SegmentsVirtual, ""},
		{"empty", `segments = ""`, paged, allocator.SegmentsVirtual, ""},
		{"virtual", `segments = "virtual"`, paged, allocator.SegmentsVirtual, ""},
		{"malloc", `segments = "malloc"`, paged, allocator.SegmentsMalloc, ""},
		{"buddy", `strategy = "buddy"`, paged, allocator.SegmentsMalloc, ""},
		{"no pages", "", struct{ allocator.Driver }{paged}, allocator.SegmentsMalloc, ""},
		{"pages unsupported", "", allocatortest.NewFake(total).WithoutPages(), allocator.SegmentsMalloc, ""},
		{
			"virtual, pages unsupported", `segments = "virtual"`, allocatortest.NewFake(total).WithoutPages(), "",
			`t.toml:2: allocator.segments: "virtual" is not available: allocator: virtual segments: `,
		},
		{
			"virtual, no pages", `segments = "virtual"`, struct{ allocator.Driver }{paged}, "",
			`t.toml:2: allocator.segments: "virtual" is not available: allocator: virtual segments: `,
		},
	} {
		cfg, err := configs.Parse("t.toml", []byte("[allocator]\n"+c.config))
		must.OK(t, err)
		o, err := poolOptions(cfg, c.driver)
		switch {
		case c.err != "":
			if err == nil || !strings.HasPrefix(err.Error(), c.err) || !strings.HasSuffix(err.Error(), `; use "malloc", or leave it out`) {
				t.Errorf("%s: got %v, want %s", c.name, err, c.err)
			}
		case err != nil || o.Segments != c.want:
			t.Errorf("%s: got %q, %v, want %q", c.name, o.Segments, err, c.want)
		}
	}
}
