//go:build !cuda

package kernels

import "time"

func available() error      { return ErrNoCUDA }
func toolkit() int          { return 0 }
func device() (Info, error) { return Info{}, ErrNoCUDA }
func (Precision) has() bool { return false }

func newStream(highPriority bool) (Stream, error)                    { return 0, ErrNoCUDA }
func (Stream) close() error                                          { return ErrNoCUDA }
func (Stream) synchronize() error                                    { return ErrNoCUDA }
func (Stream) upload(dst uintptr, src []byte) error                  { return ErrNoCUDA }
func (Stream) download(dst []byte, src uintptr) error                { return ErrNoCUDA }
func (Stream) fill(dst uintptr, value byte, bytes int) error         { return ErrNoCUDA }
func (Stream) gemm(precision Precision, g GEMM) error                { return ErrNoCUDA }
func (Stream) groupedGEMM(precision Precision, group []GEMM) error   { return ErrNoCUDA }
func (Stream) dgradWgrad(precision Precision, g GEMM) error          { return ErrNoCUDA }
func fusesWgrad(precision Precision, g GEMM) bool                    { return false }
func wantsTransposed(precision Precision, g GEMM) bool               { return false }
func (Stream) transpose(t, x uintptr, rows, cols int) error          { return ErrNoCUDA }
func (Stream) relu(y, x uintptr, n int) error                        { return ErrNoCUDA }
func (Stream) reluBackward(dx, dy, y uintptr, n int) error           { return ErrNoCUDA }
func (Stream) softmax(p, x uintptr, rows, cols int) error            { return ErrNoCUDA }
func (Stream) crossEntropy(_, _, _, _ uintptr, rows, cols int) error { return ErrNoCUDA }
func (Stream) softmaxCrossEntropyBackward(_, _, _ uintptr, rows, cols int) error {
	return ErrNoCUDA
}
func (Stream) classifier(c Classifier) error                                { return ErrNoCUDA }
func (Stream) reduceLoss(out, loss, correct uintptr, rows, batch int) error { return ErrNoCUDA }
func (Stream) axpy(y, x uintptr, alpha float32, n int) error                { return ErrNoCUDA }
func (Stream) addUpdates(all []Updates) error                               { return ErrNoCUDA }
func (Stream) waitEvent(e Event) error                                      { return ErrNoCUDA }
func (Stream) gather(_, _, _, _, _ uintptr, rows, cols int) error           { return ErrNoCUDA }

func (Stream) fillWords(addr uintptr, value uint32, bytes int64) error { return ErrNoCUDA }
func (Stream) differing(addr uintptr, value uint32, bytes int64) (int64, error) {
	return 0, ErrNoCUDA
}
func (Stream) move(dst, src uintptr, bytes int64, early bool) error {
	return ErrNoCUDA
}
func (Stream) checksum(addr uintptr, bytes int64) (uint64, error) { return 0, ErrNoCUDA }
func (Stream) spin(cycles int64) error                            { return ErrNoCUDA }

func (Stream) beginCapture() error        { return ErrNoCUDA }
func (Stream) endCapture() (Graph, error) { return 0, ErrNoCUDA }
func (Graph) launch(s Stream) error       { return ErrNoCUDA }
func (Graph) close() error                { return ErrNoCUDA }

func newEvent(bool) (Event, error)                     { return 0, ErrNoCUDA }
func (Event) record(s Stream) error                    { return ErrNoCUDA }
func (Event) recordExternal(s Stream) error            { return ErrNoCUDA }
func (Event) since(start Event) (time.Duration, error) { return 0, ErrNoCUDA }
func (Event) close() error                             { return ErrNoCUDA }

func nvtx() error           { return ErrNoCUDA }
func pushRange(name string) {}
func popRange()             {}
