package report

import (
	"strings"
	"testing"

	"mlpool/internal/gap"
)

// TestCauses wants the largest causes first, none that is zero, and their sum to be the gap.
func TestCauses(t *testing.T) {
	var s gap.Split
	s.Live, s.Reserved = 3<<20, 10<<20
	s.Bytes[gap.Fragments], s.Bytes[gap.Rounding], s.Bytes[gap.Unknown] = 4<<20, 1<<20, 2<<20
	s.Holders[gap.Fragments] = []gap.Holders{{Tag: "a", State: "live", Stream: 7, Size: 512, Blocks: 3, Bytes: 4 << 20, Born: 40}, {State: "free", Born: -1}}
	got := Page{Replay: true}.causes("torch", Moment{MS: 100, Gap: s})
	var names []string
	for _, r := range got.Rows {
		names = append(names, r.Name+" "+r.Bytes)
	}
	if all := strings.Join(names, ", "); all != "fragments 4.0 MiB, unknown 2.0 MiB, rounding 1.0 MiB" || got.Sum != "7.0 MiB" {
		t.Errorf("%s; sum %s", all, got.Sum)
	}
	h := got.Rows[0].Holders
	if len(h) != 2 || h[0] != (holderRow{"a", "3", "512 B", "7", "60", "4.0 MiB"}) || h[1].Age != "–" {
		t.Errorf("holders %+v", h)
	}
	for _, m := range sampleMoments(newRand(1), 10, 100) {
		var sum int64
		for _, c := range largestCauses(m.Gap) {
			sum += m.Gap.Bytes[c]
		}
		if sum != m.Gap.Reserved-m.Gap.Live {
			t.Errorf("causes add up to %d of %d", sum, m.Gap.Reserved-m.Gap.Live)
		}
	}
}

// TestTagRows wants at most mostTags tags and the sum of the others.
func TestTagRows(t *testing.T) {
	tags := sampleTrace(1, 1, 4).Blocks
	for n, shown := range map[int]int{0: 0, 1: 1, mostTags: mostTags, len(tags): mostTags} {
		rows, rest := tagRows(tags[:n])
		var sum, want TagBlocks
		for _, r := range rows {
			sum.Blocks, sum.AtPeak, sum.Unfreed = sum.Blocks+r.Blocks, sum.AtPeak+r.AtPeak, sum.Unfreed+r.Unfreed
		}
		for _, r := range tags[:n] {
			want.Blocks, want.AtPeak, want.Unfreed = want.Blocks+r.Blocks, want.AtPeak+r.AtPeak, want.Unfreed+r.Unfreed
		}
		if rest != nil {
			sum.Blocks, sum.AtPeak, sum.Unfreed = sum.Blocks+rest.Blocks, sum.AtPeak+rest.AtPeak, sum.Unfreed+rest.Unfreed
		}
		if len(rows) != shown || (rest != nil) != (n > shown) || sum != want {
			t.Errorf("of %d: %d rows, rest %+v, sum %+v, want %+v", n, len(rows), rest, sum, want)
		}
	}
}

// TestHeat wants a row for each size and a column for each age, with never freed last, also of bad cells.
func TestHeat(t *testing.T) {
	if heatOf(nil) != nil {
		t.Error("a heat map of nothing")
	}
	h := heatOf([]SizeCell{{9, 2, 1, 600}, {11, 0, 2, 5000}, {11, -1, 1, 2048}, {11, 0, 2, 5000}, {-5, 200, 1, -3}, {99, 1, 1, 9}})
	if len(h.Rows) != mostHeat+1 || h.Rows[0].Size != "4.00 EiB" || len(h.Ages) != mostHeat+2 {
		t.Fatalf("%d rows from %s, ages %v", len(h.Rows), h.Rows[0].Size, h.Ages)
	}
	row := h.Rows[mostHeat-11]
	if row.Cells[0].Warmth != 100 || row.Cells[1].Text != "" || !row.Cells[mostHeat+1].Never || row.Cells[mostHeat+1].Text == "" {
		t.Errorf("%+v", row)
	}
	for age, want := range map[int]string{0: "1", 9: "512", 10: "1.02k", 20: "1.05M", 62: "4.61E"} {
		if got := requests(age); got != want {
			t.Errorf("2^%d is %s, want %s", age, got, want)
		}
	}
}
