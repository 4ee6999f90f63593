package bench

// Scenarios returns the scenarios that do not need a file, in the order in which they run.
func Scenarios() []Scenario {
	return []Scenario{
		{"pair", "a block of one size, allocated and freed at once", false, pairCases},
		{"throughput", "10 000 blocks of 1 MiB, one after the other", true, throughputCases},
		{"mixed", "pairs of sizes from 64 KiB to 16 MiB in turn", false, mixedCases},
		{"threads", "pairs of 1 MiB on several threads, each with its own stream", true, threadCases},
		{"shared", "pairs of 1 MiB on several threads that share one stream", true, sharedCases},
		{"tf_threaded", "pairs of six sizes on several threads that share one stream (TensorFlow's BM_AllocationThreaded)", true, tfThreadedCases},
		{"tf_delayed", "small blocks, each freed after a number of others was allocated (TensorFlow's BM_AllocationDelayed)", false, tfDelayedCases},
		{"random", "uniform sizes, 73 % of the calls allocate, at most 16 000 MiB live (RMM's random_allocations)", false, randomCases},
		{"churn", "live blocks of 64 KiB to 16 MiB, freed and allocated again", false, churnCases},
		{"live1000", "1000 blocks of 1 MiB live at once", false, liveCases},
		{"extreme", "columns of tables of 100 thousand to 10 million rows", false, extremeCases},
		{"multi_stream", "4 kernels of half a millisecond, each with a block of 8 bytes, from the first request to the last result (RMM's multi_stream_allocations)", false, multiStreamCases},
	}
}
