package nccl

import "time"

// SetAbortAfter has Abort wait so long for calls of NCCL.
func SetAbortAfter(d time.Duration) { abortAfter = d }

// SetCloseWithin has Close wait so long for the other ranks.
func SetCloseWithin(d time.Duration) { closeWithin = d }
