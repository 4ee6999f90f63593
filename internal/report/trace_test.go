package report

import (
	"slices"
	"strings"
	"testing"

	"mlpool/internal/gap"
)

// TestCauses wants the largest causes first, none that is zero, and their sum to be the gap.
func TestCauses(t *testing.T) {
	var s gap.Split
	s.Live, s.Reserved, s.Grew = 3<<20, 10<<20, 5<<20
	s.Bytes[gap.Fragments], s.Bytes[gap.Rounding], s.Bytes[gap.Unknown] = 4<<20, 1<<20, 2<<20
	s.Holders[gap.Fragments] = []gap.Holders{{Tag: "a", State: "live", Stream: 7, Size: 512, Blocks: 3, Bytes: 4 << 20, Born: 40}, {State: "free", Born: -1}}
	p := Page{Replay: true, Runs: []Run{{Name: "torch", Recording: Recording{Moments: []Moment{{MS: 100, Gap: s}}}}}}
	_, root := written(t, p)
	said := innerText(section(t, root, "causes"))
	for _, want := range []string{
		"At request 100, torch has 3.0 MiB live of 10.0 MiB reserved. Fragments are shorter than a request of 5.0 MiB, for which it last grew.",
		"fragments 4.0 MiB 57.1 % " + gap.Fragments.Text() + " unknown 2.0 MiB 28.6 %", "rounding 1.0 MiB 14.3 %", "reserved − live 7.0 MiB",
		"a 4.0 MiB 3 512 B 7 60 free, no live block next to it 0 B 0 0 B 0 –",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q does not say %q", said, want)
		}
	}
}

// TestBlocks wants at most mostTags tags, and the sum of the others.
func TestBlocks(t *testing.T) {
	tags := sampleTrace(1, 1, 4).Blocks
	for n, foot := range map[int]string{1: "", mostTags: "", mostTags + 2: "2 other tags|76.2 MiB|261|64.0 MiB|–|1"} {
		rows := tableOf(t, Page{Replay: true, Runs: []Run{{Name: "torch"}}, Blocks: tags[:n]}, "")
		if shown := len(rows) - 1; foot == "" && shown != n || foot != "" && (shown != mostTags+1 || rows[shown] != foot) {
			t.Errorf("of %d: %d rows, the last %q", n, shown, rows[shown])
		}
	}
}

// TestHeat wants a row for each size and a column for each age, with never freed last, also of bad cells.
func TestHeat(t *testing.T) {
	p := Page{Runs: []Run{{Name: "torch"}}, Sizes: []SizeCell{{9, 2, 1, 600}, {11, 0, 2, 5000}, {11, -1, 1, 2048}, {11, 0, 2, 5000}, {-5, 200, 1, -3}, {99, 1, 1, 9}}}
	rows := tableOf(t, p, "heat")
	if len(rows) != mostHeat+2 || !strings.HasPrefix(rows[1], "4.00 EiB|") || !strings.HasSuffix(rows[0], "|never freed") || strings.Count(rows[0], "|") != mostHeat+2 {
		t.Fatalf("%d rows, ages %v", len(rows), rows[0])
	}
	_, root := written(t, p)
	var cells []string
	for _, td := range elements(section(t, root, "blocks"), "td") {
		if title := attribute(td, "title"); title != "" {
			cells = append(cells, attribute(td, "style")+" "+attribute(td, "class")+" "+title)
		}
	}
	slices.Sort(cells)
	if len(cells) != 5 || cells[0] != "--heat:100  4 blocks of 2.0 KiB or more, age 1: 9.8 KiB" || cells[1] != "--heat:12  1 block of 1 B or more, age 4.61E: -3 B" {
		t.Errorf("%q", cells)
	}
	for age, want := range map[int]string{0: "1", 9: "512", 10: "1.02k", 20: "1.05M", 62: "4.61E"} {
		if got := requests(age); got != want {
			t.Errorf("2^%d is %s, want %s", age, got, want)
		}
	}
}
