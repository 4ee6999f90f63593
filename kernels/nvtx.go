package kernels

// NVTX returns nil if ranges can be shown to a profiler, else why not.
func NVTX() error { return nvtx() }

// PushRange opens an NVTX range on the calling thread, so its goroutine must be
// locked to that.
func PushRange(name string) { pushRange(name) }

// PopRange closes the range that the thread opened last.
func PopRange() { popRange() }
