package pages

// slackShares are the steps of the slack: n stands for 1/n of the peak. A program that
// repeats itself finds its stitches again, so the least slack is enough. A program whose
// sizes change all the time always needs new stitches, and one whose streams take turns
// moves memory between them. Such a program gets more slack, so that it rarely needs either.
var slackShares = [...]int64{LeastSlackShare, 8, 4, 3, 2}

// LeastSlackShare is n if the least slack is 1/n of the peak.
const LeastSlackShare = 64

const (
	mostForStitches = 3 // in slackShares
	leastForMoves   = 2 // in slackShares: less does not reduce moves

	// Mapping a chunk takes a driver ten times as long as ordering two streams. More memory pays if
	// that happens more than once in this many requests.
	requestsPerMapped = 64
	requestsPerMove   = 32

	// moveBurst is the number of moves beyond that rate before slack grows.
	moveBurst = 64

	// Slack shrinks by a step after calmRequests requests in which it did not grow.
	calmRequests = 1 << 18
)

// Slack chooses what a pool with virtual segments reserves beyond the peak of what was handed out before it maps
// chunks in stitches or takes them from other heaps, by the driver calls that it made for lack of slack.
type Slack struct {
	step      int   // in slackShares
	stitched  int   // the step of the share of all memory: at most step
	stitching int64 // chunks mapped beyond one in requestsPerMapped requests, times that number
	moving    int64 // moves beyond one in requestsPerMove requests, times that number
	since     int64 // requests when step changed last
	Grew      bool  // since the pool was made

	// The counts that Observe saw last:
	mappings, moves, requests int64
}

// Bytes returns the slack of a pool of which moving bytes move between streams. Memory that stays with its stream
// needs none for moves, and would only make that slack larger: so what moves has a share of its own.
func (s *Slack) Bytes(peak, moving int64) int64 {
	return max(peak/slackShares[s.stitched], moving/slackShares[s.step])
}

// Observe adjusts the slack. The arguments are totals: chunks mapped in stitches, moves between streams,
// requests.
func (s *Slack) Observe(mappings, moves, requests int64) {
	passed := requests - s.requests
	s.stitching = max(s.stitching+requestsPerMapped*(mappings-s.mappings)-passed, 0)
	s.moving = max(s.moving+requestsPerMove*(moves-s.moves)-passed, 0)
	s.mappings, s.moves, s.requests = mappings, moves, requests
	switch {
	case s.stitching > requestsPerMapped*bounds.burst:
		s.stitched = min(s.stitched+1, mostForStitches)
		s.change(max(min(s.step+1, mostForStitches), s.step))
	case s.moving > requestsPerMove*moveBurst:
		s.change(min(max(s.step+1, leastForMoves), len(slackShares)-1))
	case requests-s.since > calmRequests && s.step > 0:
		s.change(s.step - 1)
	}
}

// change sets the step and restarts the counts.
func (s *Slack) change(step int) {
	s.Grew = s.Grew || step > s.step
	s.step, s.since = step, s.requests
	s.stitched = min(s.stitched, step)
	s.stitching, s.moving = 0, 0
}
