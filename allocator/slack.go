package allocator

// Slack is what a pool with virtual segments reserves beyond the peak of what was handed
// out, before it maps chunks in stitches or takes them from other heaps.

// slackShares are the steps of the slack: n stands for 1/n of that peak. A program that
// repeats itself finds its stitches again, so the least slack is enough. A program whose
// sizes change all the time always needs new stitches, and one whose streams take turns
// moves memory between them. Such a program gets more slack, so that it rarely needs either.
var slackShares = [...]int64{64, 8, 4, 3, 2}

const (
	mostForStitches = 3 // in slackShares
	leastForMoves   = 2 // in slackShares: less does not reduce moves

	// To map a chunk takes a driver some 20 µs, to order two streams some 2 µs. More memory
	// is worth it where that happens more than once in this many requests.
	requestsPerMapped = 64
	requestsPerMove   = 32

	// moveBurst is how many moves beyond that rate slack tolerates before it grows.
	moveBurst = 64

	// Slack shrinks by a step after calmRequests requests in which it did not grow.
	calmRequests = 1 << 18
)

// stitchBurst is how many chunks beyond that rate may be mapped before slack grows. Some
// programs map 4096 to warm up, and then none. It is a variable for tests of few calls.
var stitchBurst int64 = 4096

// slack chooses how much slack there is, by how often the pool called the driver for lack of it.
type slack struct {
	step      int   // in slackShares
	stitching int64 // chunks mapped beyond one in requestsPerMapped requests, times that number
	moving    int64 // moves beyond one in requestsPerMove requests, times that number
	since     int64 // requests when step changed last
	grew      bool  // since the pool was made

	// The counts that observe saw last:
	mappings, moves, requests int64
}

// share returns n where one part in n of the peak is slack.
func (k *slack) share() int64 { return slackShares[k.step] }

// observe adjusts the slack. Since the pool was made it served requests requests, mapped
// mappings chunks in stitches, and took memory of other streams moves times.
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

// change sets the step and restarts the counts.
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
