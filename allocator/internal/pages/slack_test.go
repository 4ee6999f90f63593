package pages

import "testing"

// TestSlackSteps tells a slack how often the driver was called, in rounds of 1000 requests.
func TestSlackSteps(t *testing.T) {
	for _, c := range []struct {
		name            string
		rounds          int64
		mappings, moves int64 // a round
		from, want      int64 // n for 1/n
	}{
		{"nothing", 10_000, 0, 0, 64, 64},
		{"stitches of a program that warms up", 1, 1000, 0, 64, 64},
		{"stitches for ever", 100, 1000, 0, 64, 3},
		{"few stitches for ever", 10_000, 15, 0, 64, 64},
		{"a few more", 80, 30, 0, 64, 8},
		{"moves of a program that warms up", 1, 0, 60, 64, 64},
		{"moves", 1, 0, 120, 64, 4},
		{"moves for ever", 100, 0, 120, 64, 2},
		{"few moves for ever", 10_000, 0, 31, 64, 64},
		{"moves go on", 10_000, 0, 120, 2, 2},
		{"stitches go on, moves do not", 10_000, 1000, 0, 3, 3},
		{"calm", 300, 0, 0, 2, 3},
		{"calm for long", 2000, 0, 0, 2, 64},
	} {
		var k Slack
		for slackShares[k.step] != c.from {
			k.step++
		}
		for round := int64(1); round <= c.rounds; round++ {
			k.Observe(round*c.mappings, round*c.moves, round*1000)
		}
		if got := slackShares[k.step]; got != c.want {
			t.Errorf("%s: one part in %d becomes one in %d, want %d", c.name, c.from, got, c.want)
		}
	}
}

// TestSlackBytes has slack for stitches as a share of all memory, and for moves as a share of what moves.
func TestSlackBytes(t *testing.T) {
	for _, c := range []struct{ mappings, moves, moving, want int64 }{
		{0, 0, 0, 10}, {0, 0, 640, 10}, {0, 120, 0, 10}, {0, 120, 640, 320}, {1000, 0, 0, 213}, {1000, 120, 640, 320},
	} {
		var s Slack
		for round := range int64(100) {
			s.Observe(round*c.mappings, round*c.moves, round*1000)
		}
		if got := s.Bytes(640, c.moving); got != c.want {
			t.Errorf("%+v: slack of %d bytes", c, got)
		}
	}
}
