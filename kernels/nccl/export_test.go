package nccl

import "time"

// SetAbortAfter sets how long Abort waits for calls of NCCL.
func SetAbortAfter(d time.Duration) { abortAfter = d }

// SetCloseWithin sets how long Close waits for the other ranks.
func SetCloseWithin(d time.Duration) { closeWithin = d }
