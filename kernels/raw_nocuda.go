//go:build !cuda

package kernels

import "time"

func available() error                                                   { return ErrNoCUDA }
func toolkit() int                                                       { return 0 }
func device() (Info, error)                                              { return Info{}, ErrNoCUDA }
func (p Precision) has() bool                                            { return false }
func newStream(highPriority bool) (Stream, error)                        { return 0, ErrNoCUDA }
func (s Stream) close() error                                            { return ErrNoCUDA }
func (s Stream) synchronize() error                                      { return ErrNoCUDA }
func (s Stream) upload(dst uintptr, src []byte) error                    { return ErrNoCUDA }
func (s Stream) download(dst []byte, src uintptr) error                  { return ErrNoCUDA }
func (s Stream) fill(dst uintptr, value byte, bytes int) error           { return ErrNoCUDA }
func fusesWgrad(precision Precision, g GEMM) bool                        { return false }
func wantsTransposed(precision Precision, g GEMM) bool                   { return false }
func takesStride(precision Precision, g GEMM) bool                       { return false }
func chains(precision Precision, g GEMM) bool                            { return false }
func (s Stream) exchange(e Exchange) error                               { return ErrNoCUDA }
func newIPC(bytes int64) (addr uintptr, h IPCHandle, err error)          { return 0, IPCHandle{}, ErrNoCUDA }
func freeIPC(addr uintptr) error                                         { return ErrNoCUDA }
func openIPC(h IPCHandle) (uintptr, error)                               { return 0, ErrNoCUDA }
func closeIPC(addr uintptr) error                                        { return ErrNoCUDA }
func newAbortFlag() (uintptr, error)                                     { return 0, ErrNoCUDA }
func freeAbortFlag(addr uintptr) error                                   { return ErrNoCUDA }
func (s Stream) fillWords(addr uintptr, value uint32, bytes int64) error { return ErrNoCUDA }
func (s Stream) move(dst, src uintptr, bytes int64, early bool) error    { return ErrNoCUDA }
func (s Stream) differing(addr uintptr, value uint32, bytes int64) (int64, error) {
	return 0, ErrNoCUDA
}
func (s Stream) checksum(addr uintptr, bytes int64) (uint64, error) { return 0, ErrNoCUDA }
func (s Stream) spin(cycles int64) error                            { return ErrNoCUDA }
func (s Stream) beginCapture() error                                { return ErrNoCUDA }
func (s Stream) endCapture() (Graph, error)                         { return 0, ErrNoCUDA }
func (g Graph) launch(s Stream) error                               { return ErrNoCUDA }
func (g Graph) close() error                                        { return ErrNoCUDA }
func newEvent(timed bool) (Event, error)                            { return 0, ErrNoCUDA }
func (e Event) record(s Stream) error                               { return ErrNoCUDA }
func (e Event) recordExternal(s Stream) error                       { return ErrNoCUDA }
func (s Stream) waitEvent(e Event) error                            { return ErrNoCUDA }
func (e Event) since(start Event) (time.Duration, error)            { return 0, ErrNoCUDA }
func (e Event) close() error                                        { return ErrNoCUDA }
func nvtx() error                                                   { return ErrNoCUDA }
func pushRange(name string)                                         {}
func popRange()                                                     {}

// For these see [Launches].

func (Stream) GEMM(precision Precision, g GEMM) error                  { return ErrNoCUDA }
func (Stream) GroupedGEMM(precision Precision, group []GEMM) error     { return ErrNoCUDA }
func (Stream) DgradWgrad(precision Precision, g GEMM) error            { return ErrNoCUDA }
func (Stream) Transpose(t, x uintptr, rows, cols int) error            { return ErrNoCUDA }
func (Stream) Activate(precision Precision, y, x uintptr, n int) error { return ErrNoCUDA }
func (Stream) ActivateBackward(precision Precision, dx, dy, y uintptr, n int) error {
	return ErrNoCUDA
}
func (Stream) Softmax(p, x uintptr, rows, cols int) error { return ErrNoCUDA }
func (Stream) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return ErrNoCUDA
}
func (Stream) SoftmaxCrossEntropyBackward(precision Precision, dx, p, labels uintptr, rows, cols int) error {
	return ErrNoCUDA
}
func (Stream) Classifier(precision Precision, c Classifier) error { return ErrNoCUDA }
func (Stream) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return ErrNoCUDA
}
func (Stream) Step(w, dw uintptr, rate float32, n int) error        { return ErrNoCUDA }
func (Stream) Round(precision Precision, y, x uintptr, n int) error { return ErrNoCUDA }
func (Stream) Gather(precision Precision, x, y, images, labels, indices uintptr, rows, cols int) error {
	return ErrNoCUDA
}
