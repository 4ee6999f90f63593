package report

import (
	"slices"
	"strings"
	"testing"

	"mlpool/internal/gap"
)

// timed returns a run of seven epochs. The first is slow; the others take about ms each, times
// the factors in turn.
func timed(name string, ms float64, reserved int64, factors ...float64) Run {
	r := Run{Name: name}
	for i := range 7 {
		took := ms * (1 + 0.001*float64(i-2))
		if i == 0 {
			took = 10 * ms
		}
		if len(factors) > 0 {
			took *= factors[i%len(factors)]
		}
		r.Epochs = append(r.Epochs, Epoch{Number: i + 1, Warmup: i == 0, Steps: 100, TrainMS: took, AllocatorMS: 1, PeakAllocated: 90 << 20, PeakReserved: reserved})
	}
	return r
}

// first returns the run with only its first epochs.
func first(r Run, epochs int) Run {
	r.Epochs = r.Epochs[:epochs]
	return r
}

func TestHeadline(t *testing.T) {
	calls := func(name string, ns ...float64) Run { return Run{Name: name, CallNS: ns} }
	a, c := timed("custom", 40, 102<<20), timed("cuda", 50, 128<<20)
	b := timed("plan", 40, 102<<20, 1.001, 0.998, 1.002) // equal to a within noise
	ended := func(r Run, epoch int) Run {
		r.Diverged = epoch
		return r
	}
	const tooFew = "Not enough epochs to tell which is faster: run at least 7, since the first does not count."
	split := gap.Split{Live: 3 << 20, Reserved: 4 << 20}
	split.Bytes[gap.OtherPool], split.Bytes[gap.OtherStream] = 1<<18, 3<<18
	full := gap.Split{Live: 39 << 20, Reserved: 40 << 20}
	explained := []Run{{Name: "torch", Recording: Recording{Moments: []Moment{{Gap: split}}}}}
	for _, test := range []struct {
		name string
		page Page
		want string
	}{
		{"nothing", Page{Runs: []Run{{Name: "custom"}}}, "No whole epoch was timed."},
		{"one run", Page{Runs: []Run{a}}, "custom takes 40.1 ms an epoch."},
		{"all the same", Page{Turns: true, Runs: []Run{a, b}}, "custom and plan take the same time within noise: 40.1 ms an epoch."},
		{"too noisy", Page{Turns: true, Runs: []Run{a, timed("plan", 40, 102<<20, 1.4, 0.8)}},
			"The epochs vary too much to tell custom and plan apart."},
		{"too noisy, but for one", Page{Turns: true, Runs: []Run{a, timed("plan", 40, 102<<20, 1.4, 0.8), b, c}},
			"The epochs vary too much to tell custom, plan and plan apart."},
		{"one is faster, and one too noisy", Page{Turns: true, Runs: []Run{c, a, timed("noisy", 50, 128<<20, 1.4, 0.7)}},
			"custom or noisy is the fastest: with custom, an epoch takes 20.0 % less time than with cuda (95 % interval −20.0 to −20.0 %)."},
		{"the first is fastest", Page{Turns: true, Runs: []Run{a, c}},
			"custom is the fastest: 40.1 ms an epoch."},
		{"another one is fastest", Page{Turns: true, Runs: []Run{c, a, timed("plan", 50, 102<<20, 1.001, 0.998, 1.002)}},
			"custom is the fastest: an epoch takes 20.0 % less time than with cuda (95 % interval −20.0 to −20.0 %)."},
		{"two are faster and not told apart", Page{Turns: true, Runs: []Run{c, a, b}},
			"plan or custom is the fastest: with plan, an epoch takes 20.0 % less time than with cuda (95 % interval −20.2 to −19.8 %)."},
		{"one epoch each", Page{Turns: true, Runs: []Run{first(a, 1), first(c, 1)}}, tooFew},
		{"six epochs", Page{Turns: true, Runs: []Run{first(a, 6), first(c, 6)}}, tooFew},
		{"one did not begin", Page{Turns: true, Runs: []Run{a, c, {Name: "malloc"}}}, "custom is the fastest: 40.1 ms an epoch."},
		{"no turns", Page{Runs: []Run{a, c}},
			"These runs did not take turns, so they cannot be ranked: the machine may have changed between them. train -compare lets allocators take turns."},
		{"other work", Page{Runs: []Run{a, c}, Unlike: []Fact{{"train.bsz", "64, 1024"}, {"model.feat_dim", "784, 333"}}},
			"These runs are not comparable: they differ in train.bsz (64, 1024) and model.feat_dim (784, 333)."},
		{"diverged", Page{Turns: true, Runs: []Run{ended(a, 3), c}},
			"custom diverged in epoch 3: the loss became NaN or infinite. custom is the fastest: 40.1 ms an epoch."},
		{"all diverged", Page{Turns: true, Runs: []Run{ended(first(a, 0), 1), ended(first(b, 0), 1), ended(first(c, 1), 2)}},
			"custom diverged in epoch 1, plan diverged in epoch 1 and cuda diverged in epoch 2: the loss became NaN or infinite. cuda takes 500 ms an epoch."},
		{"two replays", Page{Replay: true, Turns: true, Runs: []Run{calls("tlsf", 39, 40), calls("bestfit", 60, 62)}},
			"Not enough replays to tell which is faster: run at least 6."},
		{"replays", Page{Replay: true, Turns: true, Runs: []Run{calls("tlsf", 39, 40, 41, 40, 39, 41), calls("bestfit", 40, 40, 41, 39, 40, 41), calls("cuda", 950, 951, 949, 950, 952, 948)}},
			"tlsf and bestfit take the same time within noise: 40.0 ns a call."},
		{"the first was not timed", Page{Replay: true, Turns: true, Runs: []Run{calls("torch"), calls("tlsf", 40, 39, 41, 40, 41, 40), calls("cuda", 81, 80, 82, 81, 83, 82)}},
			"tlsf is the fastest: 40.0 ns a call."},
		{"a trace", Page{Replay: true, Runs: explained, Changes: []Change{{"expandable segments", "A=b", 4 << 20, 2 << 20}}}, "1.0 MiB of the 4.0 MiB that torch reserves are not live, 768.0 KiB of them by other stream (free, but only on another stream). What would help most: expandable segments. It would reserve 2.0 MiB instead of PyTorch's 4.0 MiB."},
		{"mostly live", Page{Replay: true, Runs: []Run{{Name: "torch", Recording: Recording{Moments: []Moment{{Gap: full}}}}}, Blocks: []TagBlocks{{Tag: "a", AtPeak: 5 << 20, Category: "gradients"}, {Tag: "b", AtPeak: 9 << 20, Category: "activations"}, {Tag: "c", AtPeak: 25 << 20, Category: "activations"}}},
			"39.0 MiB of the 40.0 MiB that torch reserves are live, 34.0 MiB of them activations."},
		{"nothing helps", Page{Replay: true, Turns: true, Runs: []Run{calls("torch", 40)}, Changes: []Change{{"x", "", 4 << 20, 5 << 20}}},
			"No change that was tried would reserve less. torch takes 40.0 ns a call."},
		{"many equal", Page{Turns: true, Runs: append(slices.Repeat([]Run{b}, 7), c)},
			"plan, plan, plan, plan and 3 more take the same time within noise: 40.1 ms an epoch."},
	} {
		headline := test.page.headline()
		if got := strings.Join(headline, " "); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
		_, root := written(t, test.page)
		if titles := elements(root, "h1"); len(titles) != 1 || innerText(titles[0]) != headline[0] {
			t.Errorf("%s: %q is not the heading", test.name, headline[0])
		}
	}
}
