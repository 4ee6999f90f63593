package nccl

import "time"

// SetAbortAfter has Abort wait so long for calls of NCCL.
func SetAbortAfter(d time.Duration) { abortAfter = d }
