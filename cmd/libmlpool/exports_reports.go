//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"mlpool/allocator"
	"mlpool/allocator/observe"
)

// The functions that entry.c calls for statistics and snapshots.

//export mlpool_go_stats
func mlpool_go_stats(handle C.uintptr_t, out *C.mlpool_stats, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		st := p.stats()
		out.allocs, out.frees, out.refused = C.int64_t(st.Allocs), C.int64_t(st.Frees), C.int64_t(st.Refused)
		out.driver_calls, out.driver_mallocs, out.driver_frees = C.int64_t(st.DriverCalls), C.int64_t(st.DriverMallocs), C.int64_t(st.DriverFrees)
		out.host_waits, out.mappings, out.stitches = C.int64_t(st.HostWaits), C.int64_t(st.Mappings), C.int64_t(st.Stitches)
		out.allocated, out.allocated_peak = C.int64_t(st.Allocated), C.int64_t(st.PeakAllocated)
		out.reserved, out.reserved_peak = C.int64_t(st.Reserved), C.int64_t(st.PeakReserved)
		return nil
	})
}

//export mlpool_go_reset_peaks
func mlpool_go_reset_peaks(handle C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		p.captures.mu.Lock()
		p.captures.past.PeakAllocated = 0
		p.captures.mu.Unlock()
		p.driver.peakTaken(true)
		return p.each(func(a *allocator.Pool) error {
			a.ResetPeaks()
			return nil
		})
	})
}

//export mlpool_go_stats_json
func mlpool_go_stats_json(handle C.uintptr_t, buffer *C.char, room C.size_t, bytes *C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		line, err := json.Marshal(p.report())
		if err != nil {
			return err
		}
		line = append(line, 0)
		*bytes = C.size_t(len(line))
		if C.size_t(len(line)) > room {
			return fmt.Errorf("mlpool: the statistics have %d bytes: the buffer has %d", len(line), room)
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(buffer)), room), line)
		return nil
	})
}

//export mlpool_go_snapshot
func mlpool_go_snapshot(handle C.uintptr_t, path, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.snapshot(C.GoString(path)) })
}

// snapshot writes the file of mlpool_snapshot.
func (p *pool) snapshot(path string) error {
	trace := p.trace
	if trace == nil {
		if !strings.HasSuffix(path, ".pickle") {
			return errors.New("mlpool: this file has calls, and the pool keeps none: create it with trace_events=N, or write a .pickle")
		}
		trace = allocator.NewTrace(p.outer(), 1) // without events
	}
	var text bytes.Buffer
	if err := observe.Write(&text, filepath.Ext(path), trace, p.memory()); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o666)
}

//export mlpool_go_visit
func mlpool_go_visit(handle C.uintptr_t, visitor C.mlpool_visitor, arg C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		p.visit(func(r C.mlpool_region) { C.entry_visit(visitor, arg, &r) })
		return nil
	})
}

// kinds are the kinds of regions by the state of a block.
var kinds = map[string]C.mlpool_region_kind{
	allocator.MapLive: C.MLPOOL_LIVE, allocator.MapFree: C.MLPOOL_FREE, allocator.MapCached: C.MLPOOL_FREE, allocator.MapWaiting: C.MLPOOL_WAITING,
	allocator.MapUnmapped: C.MLPOOL_UNMAPPED, allocator.MapStitched: C.MLPOOL_ELSEWHERE, allocator.MapUnstitched: C.MLPOOL_ELSEWHERE,
}

// visit calls f for the regions of the pool and of its captures.
func (p *pool) visit(f func(C.mlpool_region)) {
	of := func(id uint64, m allocator.Map) {
		for _, s := range m.Segments {
			r := C.mlpool_region{
				size: C.sizeof_mlpool_region, kind: C.MLPOOL_SEGMENT, ptr: pointer(s.Addr), bytes: C.size_t(s.Bytes), stream: C.mlpool_stream(pointer(uintptr(s.Stream))),
				id: C.uint64_t(id),
			}
			if s.Kind == allocator.MapStitch {
				r.mapped = 2
			} else if s.Page > 0 {
				r.mapped = 1
			}
			f(r)
			for _, b := range s.Blocks {
				r.kind, r.ptr, r.bytes, r.stream = kinds[b.State], pointer(b.Addr), C.size_t(b.Bytes), C.mlpool_stream(pointer(uintptr(b.Stream)))
				r.tag = C.CString(b.Tag)
				f(r)
				C.free(unsafe.Pointer(r.tag))
			}
		}
	}
	of(0, p.base.Map())
	for _, c := range p.captures.list() {
		of(c.id, c.alloc.Map())
	}
}

// pointer is a C pointer to device memory, which Go never follows.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
