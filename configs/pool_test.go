package configs

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/internal/must"
)

// TestPoolOptions sets the keys for a pool and wants each to reach its option.
func TestPoolOptions(t *testing.T) {
	c := Default()
	for _, key := range [][2]string{
		{"strategy", "bestfit"},
		{"reuse", "same-stream"},
		{"segments", `"virtual"`},
		{"segment_bytes", "512"},
		{"max_segment_bytes", "1024"},
		{"max_bytes", "4096"},
		{"max_fraction", "0.25"},
		{"gc_threshold", "0.5"},
		{"slack", "1/8"},
		{"preallocate", " 256 "},
	} {
		if err := c.Set("allocator."+key[0], key[1]); err != nil {
			t.Error(err)
		}
	}
	want := allocator.PoolOptions{
		Strategy: "bestfit", Reuse: allocator.ReuseSameStream, Segments: "virtual", SegmentBytes: 512,
		MaxSegmentBytes: 1024, MaxBytes: 4096, MaxFraction: 0.25, GCThreshold: 0.5,
		Slack: 0.125, PreallocateBytes: 256,
	}
	if got, err := c.Allocator.PoolOptions(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := (Allocator{Reuse: "never"}).PoolOptions(); err == nil {
		t.Error("no error of a policy that does not exist")
	}
}

// TestSet wants a config that stays as it is after an error, and copies that know only what was set before.
func TestSet(t *testing.T) {
	var c Config
	if err := c.Set("allocator.slack", "0.5"); err != nil || c.Allocator.Slack != 0.5 {
		t.Errorf("slack is %v, %v", c.Allocator.Slack, err)
	}
	before := c
	if err := c.Set("allocator.slack", "2"); err == nil || c.Allocator.Slack != 0.5 {
		t.Errorf("slack is %v, %v", c.Allocator.Slack, err)
	}
	must.OK(t, c.Set("allocator.poison", "true"))
	if got := before.Errorf("allocator.poison", "no").Error(); !strings.Contains(got, "not set there") {
		t.Errorf("a copy knows what was set later: %s", got)
	}
	if got := c.Errorf("allocator.poison", "no").Error(); got != "allocator.poison: no" {
		t.Errorf("got %s", got)
	}
}

func TestKeysOf(t *testing.T) {
	var all []string
	for _, section := range []string{"model", "train", "allocator", "data", "log"} {
		all = append(all, KeysOf(section)...)
	}
	if !slices.Equal(all, Keys()) {
		t.Errorf("the sections have the keys %q, want %q", all, Keys())
	}
	if got := KeysOf("alloc"); len(got) > 0 {
		t.Errorf("a section that does not exist has the keys %q", got)
	}
}
