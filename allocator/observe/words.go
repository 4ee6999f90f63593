package observe

// A word is a text that has a meaning in a snapshot.
type word uint8

const (
	_ word = iota
	// Keys of the snapshot.
	keySegments
	keyTraces
	// Keys of an entry of a device's trace.
	keyAction
	keyAddr
	keySize
	keyStream
	keyPool
	keyFrames
	// Keys of a segment, which also has a stream, a pool and frames, and of a block in it.
	keyDevice
	keyBlocks
	keyAddress
	keyTotalSize
	keyType
	keyExpandable
	keyRequestedSize
	keyState
	keyHistory // of a block, of PyTorch 2.0
	// Keys of the snapshot's allocator_settings.
	keySettings
	keyConf
	keyConfOfAll // of PyTorch from 2.9 on
	keyMaxSplit
	keyExpandableSegments
	// Keys of a frame.
	keyName
	keyFilename
	keyLine
	keys // how many there are
	// Actions.
	actionAlloc
	actionFreeRequested
	actionFreeCompleted
	actionReserve // memory from the driver
	actionRelease // memory to the driver
	actionOOM
	actionOther // of the allocator that was recorded
	actionUnknown
	// States of a block.
	stateAllocated
	stateWaiting
	stateInactive
	// Types of a segment.
	typeSmall
	typeLarge
	typeAll // of WriteSnapshot
	// isSegment is, in place of an action, a segment.
	isSegment
)

var words = map[string]word{
	"segments":            keySegments,
	"device_traces":       keyTraces,
	"action":              keyAction,
	"addr":                keyAddr,
	"size":                keySize,
	"stream":              keyStream,
	"pool_id":             keyPool,
	"segment_pool_id":     keyPool,
	"frames":              keyFrames,
	"device":              keyDevice,
	"blocks":              keyBlocks,
	"address":             keyAddress,
	"total_size":          keyTotalSize,
	"segment_type":        keyType,
	"is_expandable":       keyExpandable,
	"requested_size":      keyRequestedSize,
	"state":               keyState,
	"history":             keyHistory,
	"allocator_settings":  keySettings,
	"max_split_size":      keyMaxSplit,
	"expandable_segments": keyExpandableSegments,
	"name":                keyName,

	"PYTORCH_CUDA_ALLOC_CONF": keyConf,
	"PYTORCH_ALLOC_CONF":      keyConfOfAll,

	"filename":             keyFilename,
	"line":                 keyLine,
	"alloc":                actionAlloc,
	"free_requested":       actionFreeRequested,
	"free_completed":       actionFreeCompleted,
	"oom":                  actionOOM,
	"segment_alloc":        actionReserve,
	"segment_map":          actionReserve,
	"segment_free":         actionRelease,
	"segment_unmap":        actionRelease,
	"snapshot":             actionOther,
	"user_defined":         actionOther,
	"active_allocated":     stateAllocated,
	"active_pending_free":  stateWaiting,
	"active_awaiting_free": stateWaiting,
	"inactive":             stateInactive,
	"small":                typeSmall,
	"large":                typeLarge,
	segmentsOfAll:          typeAll,
}
