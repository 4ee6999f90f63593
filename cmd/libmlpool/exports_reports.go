//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
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
		out.driver_calls, out.driver_mallocs = C.int64_t(st.DriverCalls), C.int64_t(st.DriverMallocs)
		out.host_waits, out.mappings, out.stitches = C.int64_t(st.HostWaits), C.int64_t(st.Mappings), C.int64_t(st.Stitches)
		out.allocated, out.allocated_peak = C.int64_t(st.Allocated), C.int64_t(st.PeakAllocated)
		out.reserved, out.reserved_peak = C.int64_t(st.Reserved), C.int64_t(st.PeakReserved)
		return nil
	})
}

//export mlpool_go_reset_peaks
func mlpool_go_reset_peaks(handle C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		return p.each(func(a allocator.Allocator) error {
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
		trace = allocator.NewTrace(p.alloc, 1) // without events
	}
	return observe.WriteFile(path, trace, p.memory())
}
