package allocator

// How much a pool with virtual segments reserves beyond the most that was ever handed
// out, before it maps chunks in stitches or takes them from other heaps.

// slackShares are the steps of the slack: one part in so many of that peak. A program
// that repeats itself finds its stitches again, and does with the least slack. One whose
// sizes change all the time needs new stitches for ever, and one whose streams do takes
// memory from one stream for another: it gets more, so that neither is needed often.
// Random sizes up to 64 MiB, of 16 GiB in all, take 80 ns a call with an eighth instead
// of 40 µs, for 1.125 bytes a byte instead of 1.06; fewer blocks of such sizes need more.
var slackShares = [...]int64{64, 8, 4, 3, 2}

const (
	mostForStitches = 3 // in slackShares
	leastForMoves   = 2 // in slackShares: less does not reduce moves

	// To map a chunk takes a driver some 20 µs, to order two streams some 2 µs. More memory
	// is worth it where that is needed more than once in so many requests.
	requestsPerMapped = 64
	requestsPerMove   = 32

	// How many more moves there may be before slack grows.
	moveBurst = 64

	// calmRequests is after how many requests in which slack did not grow it shrinks.
	calmRequests = 1 << 18
)

// stitchBurst is how many more chunks may be mapped: some programs map 4096 to warm up, and
// then none. It is a variable so that tests of few calls reach it.
var stitchBurst int64 = 4096

// slack is how much slack there is, by how often the driver was called for the lack of it.
type slack struct {
	step      int   // in slackShares
	stitching int64 // chunks mapped beyond one in requestsPerMapped requests, times that number
	moving    int64 // moves beyond one in requestsPerMove requests, times that number
	since     int64 // requests when step changed last
	grew      bool  // at any time

	// When they were looked at last:
	mappings, moves, requests int64
}

// share returns n where one part in n of the peak is slack.
func (k *slack) share() int64 { return slackShares[k.step] }

// observe learns from how many chunks were mapped in stitches and how many requests took
// memory of other streams, of so many requests, all since the pool was made.
func (k *slack) observe(mappings, moves, requests int64) {
	passed := requests - k.requests
	k.stitching = max(k.stitching+requestsPerMapped*(mappings-k.mappings)-passed, 0)
	k.moving = max(k.moving+requestsPerMove*(moves-k.moves)-passed, 0)
	k.mappings, k.moves, k.requests = mappings, moves, requests
	switch {
	case k.stitching > requestsPerMapped*stitchBurst:
		k.change(max(min(k.step+1, mostForStitches), k.step))
	case k.moving > requestsPerMove*moveBurst:
		k.change(min(max(k.step+1, leastForMoves), len(slackShares)-1))
	case requests-k.since > calmRequests && k.step > 0:
		k.change(k.step - 1)
	}
}

// change begins to count anew.
func (k *slack) change(step int) {
	k.grew = k.grew || step > k.step
	k.step, k.since = step, k.requests
	k.stitching, k.moving = 0, 0
}

// slack returns how many bytes may be reserved beyond the peak of what was handed out before
// chunks are stitched or taken from other heaps.
func (p *Pool) slack(peak int64) int64 {
	if p.opt.Slack > 0 {
		return int64(p.opt.Slack * float64(peak))
	}
	s := p.space
	s.slack.observe(s.mappings, s.moves, s.requests)
	return peak / s.slack.share()
}
