package report

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// TestThin keeps ends and extremes.
func TestThin(t *testing.T) {
	var all []Peak
	for i := range 100_000 {
		all = append(all, Peak{float64(i), 50, 100})
	}
	all[777].Live, all[88_888].Live = 99, 1
	thinned := thin(all, mostPeaks)
	if len(thinned) > mostPeaks || thinned[0] != all[0] || thinned[len(thinned)-1] != all[len(all)-1] {
		t.Errorf("%d peaks, from %v to %v", len(thinned), thinned[0], thinned[len(thinned)-1])
	}
	if !slices.Contains(thinned, all[777]) || !slices.Contains(thinned, all[88_888]) {
		t.Error("an extreme is lost")
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{digits(0), "0"}, {digits(0.804), "0.80"}, {digits(9.996), "10.0"}, {digits(48.93), "48.9"}, {digits(99.96), "100"}, {digits(-1.5), "−1.50"},
		{percent(0.44), "+0.4 %"}, {percent(-21), "−21.0 %"}, {percent(361.4), "+361.4 %"},
		{interval(stats.Difference{Low: -1.1, High: 0.3}), "−1.1 to +0.3 %"},
		{text.Bytes(100), "100 B"}, {text.Bytes(1536), "1.5 KiB"}, {text.Bytes(102 << 20), "102.0 MiB"}, {text.Bytes(3 << 30), "3.00 GiB"},
		{text.List(nil, "and"), ""}, {text.List([]string{"a"}, "and"), "a"}, {text.List([]string{"a", "b", "c"}, "and"), "a, b and c"},
		{text.Count(1, "call"), "1 call"}, {text.Count(2, "call"), "2 calls"}, {text.Count(2, "stitch"), "2 stitches"}, {text.Count(9, "epoch"), "9 epochs"},
		{fmt.Sprint(niceStep(10, 5)), "2"}, {fmt.Sprint(niceStep(99, 5)), "20"}, {fmt.Sprint(niceStep(99, 9)), "20"}, {fmt.Sprint(niceStep(0.6, 1)), "1"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}
