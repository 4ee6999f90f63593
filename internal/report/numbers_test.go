package report

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/paired"
)

// TestThin keeps ends and extremes.
func TestThin(t *testing.T) {
	var all []Moment
	for i := range 100_000 {
		all = append(all, Moment{float64(i), 50, 100})
	}
	all[777].Live, all[88_888].Live = 99, 1
	thinned := thin(all, mostMoments)
	if len(thinned) > mostMoments || thinned[0] != all[0] || thinned[len(thinned)-1] != all[len(all)-1] {
		t.Errorf("%d moments, from %v to %v", len(thinned), thinned[0], thinned[len(thinned)-1])
	}
	if !slices.Contains(thinned, all[777]) || !slices.Contains(thinned, all[88_888]) {
		t.Error("an extreme is lost")
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{digits(0), "0"}, {digits(0.804), "0.80"}, {digits(9.996), "10.0"}, {digits(48.93), "48.9"}, {digits(99.96), "100"}, {digits(-1.5), "−1.50"},
		{percent(0.44), "+0.4 %"}, {percent(-21), "−21.0 %"}, {percent(361.4), "+361.4 %"},
		{interval(paired.Difference{Low: -1.1, High: 0.3}), "−1.1 to +0.3 %"},
		{bytesText(100), "100 B"}, {bytesText(1536), "1.5 KiB"}, {bytesText(102 << 20), "102.0 MiB"}, {bytesText(3 << 30), "3.00 GiB"},
		{list(nil), ""}, {list([]string{"a"}), "a"}, {list([]string{"a", "b", "c"}), "a, b and c"},
		{plural(1, "call"), "1 call"}, {plural(2, "call"), "2 calls"}, {plural(2, "stitch"), "2 stitches"}, {plural(9, "epoch"), "9 epochs"},
		{fmt.Sprint(niceStep(10, 5)), "2"}, {fmt.Sprint(niceStep(99, 5)), "20"}, {fmt.Sprint(niceStep(99, 9)), "20"}, {fmt.Sprint(niceStep(0.6, 1)), "1"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}
