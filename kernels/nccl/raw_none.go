//go:build !linux || !cgo

package nccl

const (
	codeNone       = -1
	codeInProgress = 7
	idBytes        = 128
)

func rawNone() string                                        { return "built without cgo" }
func rawError(int, uintptr) string                           { return "" }
func rawVersion() (version, code int)                        { return 0, codeNone }
func rawID() (id [idBytes]byte, code int)                    { return id, codeNone }
func rawNewComm([idBytes]byte, int, int) (uintptr, int)      { return 0, codeNone }
func rawState(uintptr) (state, code int)                     { return 0, codeNone }
func rawAbort(uintptr) int                                   { return codeNone }
func rawFinalize(uintptr) int                                { return codeNone }
func rawFreeComm(uintptr) int                                { return codeNone }
func rawAllReduce(_, _ uintptr, _ int, _ uintptr) int        { return codeNone }
func rawReduceScatter(_, _, _ uintptr, _ int, _ uintptr) int { return codeNone }
func rawAllGather(_, _, _ uintptr, _ int, _ uintptr) int     { return codeNone }
func rawRegister(_, _ uintptr, _ int64) (uintptr, int)       { return 0, codeNone }
func rawDeregister(_, _ uintptr) int                         { return codeNone }
func rawNewWindow(_, _ uintptr, _ int64) (uintptr, int)      { return 0, codeNone }
func rawFreeWindow(_, _ uintptr) int                         { return codeNone }
func rawAlloc(int64) (uintptr, int)                          { return 0, codeNone }
func rawFree(uintptr) int                                    { return codeNone }
