//go:build linux && cgo

package nccl

/*
#cgo LDFLAGS: -ldl -lpthread
#include "nccl.h"
*/
import "C"

import "unsafe"

const (
	codeNone       = C.NCCL_NONE
	codeInProgress = C.NCCL_IN_PROGRESS
	idBytes        = C.NCCL_ID_BYTES
)

func rawNone() string { return C.GoString(C.nccl_none()) }

func rawError(code int, comm uintptr) string {
	return C.GoString(C.nccl_error(C.int(code), C.uintptr_t(comm)))
}

func rawVersion() (version, code int) {
	var v C.int
	code = int(C.nccl_version(&v))
	return int(v), code
}

func rawID() (id [idBytes]byte, code int) {
	code = int(C.nccl_id((*C.char)(unsafe.Pointer(&id[0]))))
	return id, code
}

func value(v C.nccl_value) (uintptr, int) { return uintptr(v.value), int(v.code) }

func rawNewComm(id [idBytes]byte, rank, size int) (uintptr, int) {
	return value(C.nccl_comm_new((*C.char)(unsafe.Pointer(&id[0])), C.int(rank), C.int(size)))
}

func rawState(comm uintptr) (state, code int) {
	var s C.int
	code = int(C.nccl_comm_state(C.uintptr_t(comm), &s))
	return int(s), code
}

func rawAbort(comm uintptr) int    { return int(C.nccl_comm_abort(C.uintptr_t(comm))) }
func rawFinalize(comm uintptr) int { return int(C.nccl_comm_finalize(C.uintptr_t(comm))) }
func rawFreeComm(comm uintptr) int { return int(C.nccl_comm_free(C.uintptr_t(comm))) }

func rawAllReduce(comm, x uintptr, n int, stream uintptr) int {
	return int(C.nccl_all_reduce(C.uintptr_t(comm), C.uintptr_t(x), C.size_t(n), C.uintptr_t(stream)))
}

func rawReduceScatter(comm, x, part uintptr, n int, stream uintptr) int {
	return int(C.nccl_reduce_scatter(C.uintptr_t(comm), C.uintptr_t(x), C.uintptr_t(part), C.size_t(n), C.uintptr_t(stream)))
}

func rawAllGather(comm, part, x uintptr, bytes int, stream uintptr) int {
	return int(C.nccl_all_gather(C.uintptr_t(comm), C.uintptr_t(part), C.uintptr_t(x), C.size_t(bytes), C.uintptr_t(stream)))
}

func rawRegister(comm, addr uintptr, bytes int64) (uintptr, int) {
	return value(C.nccl_register(C.uintptr_t(comm), C.uintptr_t(addr), C.size_t(bytes)))
}

func rawDeregister(comm, handle uintptr) int {
	return int(C.nccl_deregister(C.uintptr_t(comm), C.uintptr_t(handle)))
}

func rawNewWindow(comm, addr uintptr, bytes int64) (uintptr, int) {
	return value(C.nccl_window_new(C.uintptr_t(comm), C.uintptr_t(addr), C.size_t(bytes)))
}

func rawFreeWindow(comm, window uintptr) int {
	return int(C.nccl_window_free(C.uintptr_t(comm), C.uintptr_t(window)))
}

func rawAlloc(bytes int64) (uintptr, int) { return value(C.nccl_alloc(C.size_t(bytes))) }
func rawFree(addr uintptr) int            { return int(C.nccl_free(C.uintptr_t(addr))) }
