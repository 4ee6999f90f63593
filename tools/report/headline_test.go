package report

import (
	"fmt"
	"strings"
	"testing"
)

// timed is a run of epochs that take about ms each.
func timed(name string, ms float64, reserved int64) Run {
	r := Run{Name: name}
	for i := range 5 {
		took := ms * (1 + 0.001*float64(i-2))
		if i == 0 {
			took = 10 * ms
		}
		r.Epochs = append(r.Epochs, Epoch{Number: i + 1, Warmup: i == 0, Steps: 100, TrainMS: took, AllocatorMS: 1, PeakAllocated: 90 << 20, PeakReserved: reserved})
	}
	return r
}

// once is the run as it would be with one epoch after the first.
func once(r Run) Run {
	r.Epochs = []Epoch{r.Epochs[0], r.Epochs[2]}
	return r
}

func TestHeadline(t *testing.T) {
	calls := func(name string, ns ...float64) Run { return Run{Name: name, CallNS: ns} }
	held := func(name string, reserved int64) Run {
		return Run{Name: name, Recording: Recording{Memory: []Moment{{0, 1 << 20, reserved}, {1, 3 << 20, reserved}}}}
	}
	a, b, c := timed("custom", 40, 102<<20), timed("plan", 40, 102<<20), timed("cuda", 50, 128<<20)
	many := []Run{a}
	var all []Difference
	for i := range 7 {
		r := timed(fmt.Sprintf("s%d", i), 50, 102<<20)
		many, all = append(many, r), append(all, Difference{r.Name, 4, 25, 24, 26})
	}
	for _, test := range []struct {
		name string
		page Page
		want string
	}{
		{"nothing", Page{Runs: []Run{{Name: "custom"}}}, "No whole epoch was timed."},
		{"one run", Page{Runs: []Run{a}}, "custom takes 40.0 ms an epoch. Of each step 10.0 µs are spent in the allocator. It reserves 102.0 MiB at most."},
		{"all the same", Page{Runs: []Run{a, b}, Differences: []Difference{{"plan", 4, 0.1, -0.2, 0.4}}},
			"custom and plan take the same time within noise: 40.0 ms an epoch. All reserve 102.0 MiB."},
		{"too noisy", Page{Runs: []Run{a, b}, Differences: []Difference{{"plan", 4, 3, -22, 41}}},
			"Epochs vary too much to tell custom and plan apart: the intervals of their differences reach from −22.0 to +41.0 %. All reserve 102.0 MiB."},
		{"the first is fastest", Page{Runs: []Run{a, c}, Differences: []Difference{{"cuda", 4, 25, 24, 26}}},
			"custom is the fastest: 40.0 ms an epoch. Compared with custom, cuda takes 25.0 % longer. custom reserves least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"and another one as well", Page{Runs: []Run{a, b, c}, Differences: []Difference{{"plan", 4, -0.1, -0.2, 0.4}, {"cuda", 4, 260, 250, 270}}},
			"custom and plan are equally fast within noise: 40.0 ms an epoch. Compared with custom, cuda takes 3.6 times as long. custom and plan reserve least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"another one is fastest", Page{Runs: []Run{c, a, b}, Differences: []Difference{{"custom", 4, -20, -21, -19}, {"plan", 4, -5, -11, 1}}},
			"custom is the fastest: an epoch takes 20.0 % less time than with cuda (95 % interval −21.0 to −19.0 %). Compared with cuda, plan takes as long within noise. custom and plan reserve least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"three are faster", Page{Runs: []Run{c, a, b}, Differences: []Difference{{"custom", 4, -20, -21, -19}, {"plan", 4, -5, -6, -4}}},
			"custom is the fastest: an epoch takes 20.0 % less time than with cuda (95 % interval −21.0 to −19.0 %). Compared with cuda, plan takes 5.0 % less. custom and plan reserve least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"many", Page{Runs: many, Differences: all},
			"custom is the fastest: 40.0 ms an epoch. Compared with custom, s0 takes 25.0 % longer, s1 takes 25.0 % longer, s2 takes 25.0 % longer, s3 takes 25.0 % longer and 3 more differ too. All reserve 102.0 MiB."},
		{"apart", Page{Runs: []Run{a, c}},
			"custom is the fastest: 40.0 ms an epoch; cuda takes 25.0 % longer. custom reserves least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"one epoch each", Page{Runs: []Run{once(a), once(c)}},
			"In one epoch each, custom took the least time: 40.0 ms an epoch; cuda takes 25.0 % longer. More epochs show whether that is noise. custom reserves least, 102.0 MiB; cuda reserves most, 128.0 MiB."},
		{"replays", Page{Replay: true, Runs: []Run{calls("tlsf", 39, 40, 41), calls("bestfit", 40, 42), calls("cuda", 950, 951)}},
			"tlsf and bestfit are equally fast within their spread: 40.0 ns a call; cuda takes 24 times as long."},
		{"an outlier", Page{Replay: true, Runs: []Run{calls("tlsf", 40, 39, 90, 40, 41), calls("cuda", 81, 80, 82, 35, 83)}},
			"tlsf is the fastest: 40.0 ns a call; cuda takes 2.0 times as long."},
		{"reserved is not known of one", Page{Replay: true, Runs: []Run{held("tlsf", 4<<20), held("plan", 5<<20), held("cuda", 0)}},
			"No whole call was timed. tlsf reserves least, 4.0 MiB; plan reserves most, 5.0 MiB."},
		{"many replays", Page{Replay: true, Runs: []Run{calls("a", 1), calls("b", 1), calls("c", 1), calls("d", 1), calls("e", 1)}},
			"a is the fastest, 1.00 ns a call; the times of 4 others overlap its own."},
	} {
		if got := strings.Join(test.page.headline(), " "); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
		if _, root := written(t, test.page); len(elements(root, "h1")) != 1 {
			t.Errorf("%s: no title", test.name)
		}
	}
}
