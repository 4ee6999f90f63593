//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// The kernels are compiled by nvcc, out of go's sight. kernels.mk does it, and
// writes archive_cuda.go: how to link the archive, and its checksum, so that go
// links again when it changes.
var archive = run_make_kernels_before_building_with_tag_cuda

// check makes an error of what a C function returned.
func check(op string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{Op: op, Code: int(code), Name: C.GoString(C.kernels_error_name(code))}
}

// checked is check for a C function that also returns a value.
func checked(op string, r C.kernels_value) (uintptr, error) {
	if r.code == 0 {
		return uintptr(r.value), nil
	}
	return 0, check(op, r.code)
}

func available() error {
	code := C.kernels_available()
	switch err := check("Available", code); {
	case err == nil:
		return nil
	case code == insufficientDriver:
		return fmt.Errorf("no CUDA device can be used: NVIDIA's driver is missing or too old: %w", err)
	default:
		return fmt.Errorf("no CUDA device can be used: %w", err)
	}
}

// insufficientDriver is cudaErrorInsufficientDriver, which the runtime returns without any driver too.
const insufficientDriver = 35

func toolkit() int { return int(C.kernels_toolkit()) }

func device() (Info, error) {
	var d C.kernels_info
	if err := check("Device", C.kernels_device(&d)); err != nil {
		return Info{}, err
	}
	u := C.GoBytes(unsafe.Pointer(&d.uuid[0]), C.int(len(d.uuid)))
	return Info{
		Name:  C.GoString(&d.name[0]),
		UUID:  fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]),
		Major: int(d.major), Minor: int(d.minor), SMs: int(d.sms), Memory: int64(d.memory),
		DriverVersion: int(d.driver), RuntimeVersion: int(d.runtime),
	}, nil
}

func (p Precision) has() bool { return C.kernels_has(C.int(p)) != 0 }

func (s Stream) c() C.uintptr_t { return C.uintptr_t(s) }

func flag(set bool) C.int {
	if set {
		return 1
	}
	return 0
}

func newStream(highPriority bool) (Stream, error) {
	s, err := checked("NewStream", C.kernels_stream_new(flag(highPriority)))
	return Stream(s), err
}

func (s Stream) close() error { return check("Close", C.kernels_stream_free(s.c())) }

func (s Stream) synchronize() error { return check("Synchronize", C.kernels_stream_sync(s.c())) }

func (s Stream) upload(dst uintptr, src []byte) error {
	return check("Upload", C.kernels_upload(s.c(), C.uintptr_t(dst), unsafe.Pointer(&src[0]), C.int64_t(len(src))))
}

func (s Stream) download(dst []byte, src uintptr) error {
	return check("Download", C.kernels_download(s.c(), unsafe.Pointer(&dst[0]), C.uintptr_t(src), C.int64_t(len(dst))))
}

func (s Stream) fill(dst uintptr, value byte, bytes int) error {
	return check("Fill", C.kernels_fill(s.c(), C.uintptr_t(dst), C.int(value), C.int64_t(bytes)))
}

// The numbers of precisions, layouts, epilogues and operands are those of kernels.h: else this
// does not compile.
var _ = [1]struct{}{}[(int(BF16)-C.KERNELS_BF16)|(int(NT)-C.KERNELS_NT)|(int(TN)-C.KERNELS_TN)|
	(int(Activate)-C.KERNELS_ACTIVATE)|(int(ActivateBackward)-C.KERNELS_ACTIVATE_BACKWARD)|(int(SGD)-C.KERNELS_SGD)|
	(int(PrefetchA)-C.KERNELS_PREFETCH_A)|(int(PrefetchB)-C.KERNELS_PREFETCH_B)|(int(PrefetchC)-C.KERNELS_PREFETCH_C)|(MaxGroup-C.KERNELS_MAX_GROUP)]

func (g GEMM) c() C.kernels_gemm_args {
	return C.kernels_gemm_args{
		c: C.uintptr_t(g.C), a: C.uintptr_t(g.A), b: C.uintptr_t(g.B), y: C.uintptr_t(g.Y), rounded: C.uintptr_t(g.Rounded), t: C.uintptr_t(g.T), indices: C.uintptr_t(g.Indices),
		m: C.int64_t(g.M), n: C.int64_t(g.N), k: C.int64_t(g.K), stride: C.int64_t(g.Stride), alpha: C.float(g.Alpha),
		layout: C.int(g.Layout), epilogue: C.int(g.Epilogue), prefetch: C.int(g.Prefetch), pixels: flag(g.Pixels), beside: flag(g.Beside),
	}
}

func fusesWgrad(precision Precision, g GEMM) bool {
	return C.kernels_fuses_wgrad(C.int(precision), g.c()) != 0
}

func wantsTransposed(precision Precision, g GEMM) bool {
	return C.kernels_wants_transposed(C.int(precision), g.c()) != 0
}

func takesStride(precision Precision, g GEMM) bool {
	return C.kernels_takes_stride(C.int(precision), g.c()) != 0
}

func chains(precision Precision, g GEMM) bool {
	return C.kernels_chains(C.int(precision), g.c()) != 0
}

func cGroup(group []GEMM) C.kernels_group {
	c := C.kernels_group{count: C.int(len(group))}
	for i, g := range group[:min(len(group), MaxGroup)] {
		c.gemms[i] = g.c()
	}
	return c
}

func (c Classifier) c() C.kernels_classifier_args {
	return C.kernels_classifier_args{
		dlogits: C.uintptr_t(c.DLogits), dx: C.uintptr_t(c.DX), loss: C.uintptr_t(c.Loss), correct: C.uintptr_t(c.Correct),
		x: C.uintptr_t(c.X), w: C.uintptr_t(c.W), labels: C.uintptr_t(c.Labels), indices: C.uintptr_t(c.Indices),
		rows: C.int64_t(c.Rows), classes: C.int64_t(c.Classes), k: C.int64_t(c.K),
		prefetch: C.int(c.Prefetch),
	}
}

// The numbers of ranks and bytes are those of kernels.h.
var _ = [1]struct{}{}[(MaxRanks-C.KERNELS_MAX_RANKS)|(ExchangeFlags-C.KERNELS_EXCHANGE_FLAGS)|(len(IPCHandle{})-C.KERNELS_HANDLE_BYTES)]

func (s Stream) exchange(e Exchange) error {
	c := C.kernels_exchange{
		stop: C.uintptr_t(e.Abort), weights: C.int64_t(e.Weights), updates: C.int64_t(e.Updates), rounded: C.int64_t(e.Rounded),
		n: C.int64_t(e.N), rank: C.int(e.Rank), ranks: C.int(len(e.Memory)),
	}
	for i, addr := range e.Memory[:min(len(e.Memory), MaxRanks)] {
		c.base[i] = C.uintptr_t(addr)
	}
	return check("Exchange", C.kernels_exchange_updates(s.c(), c))
}

func (h *IPCHandle) c() *C.char { return (*C.char)(unsafe.Pointer(h)) }

func newIPC(bytes int64) (addr uintptr, h IPCHandle, err error) {
	addr, err = checked("NewIPC", C.kernels_ipc_new(C.int64_t(bytes), h.c()))
	return addr, h, err
}

func freeIPC(addr uintptr) error {
	return check("FreeIPC", C.kernels_ipc_free(C.uintptr_t(addr)))
}

func openIPC(h IPCHandle) (uintptr, error) {
	return checked("OpenIPC", C.kernels_ipc_open(h.c()))
}

func closeIPC(addr uintptr) error {
	return check("CloseIPC", C.kernels_ipc_close(C.uintptr_t(addr)))
}

func newAbortFlag() (uintptr, error) { return checked("NewAbortFlag", C.kernels_abort_flag_new()) }
func freeAbortFlag(addr uintptr) error {
	return check("FreeAbortFlag", C.kernels_abort_flag_free(C.uintptr_t(addr)))
}

func (s Stream) fillWords(addr uintptr, value uint32, bytes int64) error {
	return check("Fill", C.kernels_fill_words(s.c(), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
}

func (s Stream) move(dst, src uintptr, bytes int64, early bool) error {
	return check("Move", C.kernels_move(s.c(), C.uintptr_t(dst), C.uintptr_t(src), C.int64_t(bytes), flag(early)))
}

func (s Stream) differing(addr uintptr, value uint32, bytes int64) (int64, error) {
	var n C.int64_t
	err := check("Differing", C.kernels_differing(&n, s.c(), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
	return int64(n), err
}

func (s Stream) checksum(addr uintptr, bytes int64) (uint64, error) {
	var sum C.uint64_t
	err := check("Checksum", C.kernels_checksum(&sum, s.c(), C.uintptr_t(addr), C.int64_t(bytes)))
	return uint64(sum), err
}

func (s Stream) spin(cycles int64) error {
	return check("Spin", C.kernels_spin(s.c(), C.int64_t(cycles)))
}

func (s Stream) beginCapture() error { return check("BeginCapture", C.kernels_capture_begin(s.c())) }

func (s Stream) endCapture() (Graph, error) {
	g, err := checked("EndCapture", C.kernels_capture_end(s.c()))
	return Graph(g), err
}

func (g Graph) launch(s Stream) error {
	return check("Launch", C.kernels_graph_launch(C.uintptr_t(g), s.c()))
}

func (g Graph) close() error { return check("Close", C.kernels_graph_free(C.uintptr_t(g))) }

func newEvent(timed bool) (Event, error) {
	e, err := checked("NewEvent", C.kernels_event_new(flag(timed)))
	return Event(e), err
}

func (e Event) record(s Stream) error {
	return check("Record", C.kernels_event_record(C.uintptr_t(e), s.c()))
}

func (e Event) recordExternal(s Stream) error {
	return check("RecordExternal", C.kernels_event_record_external(C.uintptr_t(e), s.c()))
}

func (s Stream) waitEvent(e Event) error {
	return check("WaitEvent", C.kernels_stream_wait_event(s.c(), C.uintptr_t(e)))
}

func (e Event) since(start Event) (time.Duration, error) {
	var ms C.float
	err := check("Since", C.kernels_event_elapsed(&ms, C.uintptr_t(start), C.uintptr_t(e)))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

func (e Event) close() error { return check("Close", C.kernels_event_free(C.uintptr_t(e))) }

func nvtx() error {
	if C.kernels_nvtx() == 0 {
		return errors.New("built without NVTX: the CUDA toolkit had no nvtx3/nvToolsExt.h")
	}
	return nil
}

func pushRange(name string) {
	text := append([]byte(name), 0)
	C.kernels_range_push((*C.char)(unsafe.Pointer(&text[0])))
}

func popRange() { C.kernels_range_pop() }
