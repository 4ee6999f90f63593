package fake

// A call is a method of a driver.
type call uint8

const (
	callMalloc call = iota
	callFree
	callMemInfo
	callNewEvent
	callRecordEvent
	callQueryEvent
	callWaitEvent
	callSyncEvent
	callFreeEvent
	callPageSize
	callReserveRange
	callReleaseRange
	callCreatePages
	callReleasePages
	callMapPages
	callUnmapPages
	callMallocAsync
	callFreeAsync
	callPoolReserved
	callResetPoolPeak
	callTrimPool
	callClosePool
	callMallocHost
	callFreeHost
	callCopyToHost
	callCopyFromHost
	callFill
	callDiffering
	callCount
)

func (c call) String() string { return callNames[c] }

var callNames = [callCount]string{
	"Malloc", "Free", "MemInfo",
	"NewEvent", "RecordEvent", "QueryEvent", "WaitEvent", "SyncEvent", "FreeEvent",
	"PageSize", "ReserveRange", "ReleaseRange", "CreatePages", "ReleasePages", "MapPages", "UnmapPages",
	"MallocAsync", "FreeAsync", "PoolReserved", "ResetPoolPeak", "TrimPool", "ClosePool",
	"MallocHost", "FreeHost", "CopyToHost", "CopyFromHost",
	"Fill", "Differing",
}
