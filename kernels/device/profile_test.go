package device

import (
	"errors"
	"slices"
	"testing"
	"time"

	"mlpool/internal/must"
	"mlpool/kernels"
)

// tickQueue takes 10 µs for an operation and 1 µs for a mark, by its own clock.
type tickQueue struct {
	idleQueue
	now   time.Duration
	marks [64]time.Duration
	more  func() time.Duration // what an operation takes beyond that; nil: nothing
	wants bool                 // what WantsTransposed says; else FusesWgrad says yes
	fails int                  // the call of Mark that fails, from 1 on; 0: none
}

func (q *tickQueue) tick() error {
	q.now += 10 * time.Microsecond
	if q.more != nil {
		q.now += q.more()
	}
	return nil
}

func (q *tickQueue) GEMM(g kernels.GEMM) error {
	if g.Epilogue == kernels.Activate {
		return nil
	}
	return q.tick()
}

func (q *tickQueue) FusesWgrad(kernels.GEMM) bool           { return !q.wants }
func (q *tickQueue) WantsTransposed(kernels.GEMM) bool      { return q.wants }
func (q *tickQueue) Transpose(_, _ uintptr, _, _ int) error { return q.tick() }
func (q *tickQueue) DgradWgrad(kernels.GEMM) error          { return q.tick() }
func (q *tickQueue) GroupedGEMM([]kernels.GEMM) error       { return q.tick() }

func (q *tickQueue) Mark(i int) error {
	if q.fails--; q.fails == 0 {
		return errors.New("no mark")
	}
	q.marks[i] = q.now
	q.now += time.Microsecond
	return nil
}

func (q *tickQueue) Elapsed(from, to int) (time.Duration, error) {
	return q.marks[to] - q.marks[from], nil
}

// TestProfile counts the work of a step, and its time by a known clock.
func TestProfile(t *testing.T) {
	b := newBench(t, new(tickQueue), true)
	const n = 5
	p, err := b.Profile(n, func() error { return b.step(0, 10, 0) })
	must.OK(t, err)
	us := time.Microsecond
	want := []OpTime{
		{"gather+gemm+relu", "[10,12]·[12,8]", 1, 0, 2 * 10 * 12 * 8, 10*12 + 4*(12*8+10*8)},
		{"classifier+gradients", "[10,8]·[8,10]", 1, 0, 2 * 2 * 10 * 8 * 10, 4 * (2*10*8 + 8*10 + 10*10)},
		{"wgrad+sgd", "[8,10]·[10,10], [12,10]·[10,8]", 1, 10 * us, 2*12*10*8 + 2*8*10*10,
			12*10 + 4*(10*8+2*12*8) + 4*(8*10+10*10+2*8*10)},
	}
	if p.Steps != n || len(p.Ops) != len(want) {
		t.Fatalf("%d steps of %d kinds of operation, want %d of %d", p.Steps, len(p.Ops), n, len(want))
	}
	var sum time.Duration
	for i, o := range p.Ops {
		if o != want[i] {
			t.Errorf("operation %d: %+v, want %+v", i, o, want[i])
		}
		sum += o.Time
	}
	if sum+p.Gaps() != p.Step || p.Step != 10*us {
		t.Errorf("a step of %v is %v of operations and %v of gaps", p.Step, sum, p.Gaps())
	}
	if _, ok := b.queue.(*tickQueue); !ok {
		t.Errorf("the device is left with a queue of type %T", b.queue)
	}
}

// TestProfileOfAChangingClock profiles a step whose time varies.
func TestProfileOfAChangingClock(t *testing.T) {
	for _, c := range []struct {
		name string
		more func(step int) int // µs
		most time.Duration      // of what may look like a gap
	}{
		{"slower with every step", func(step int) int { return step }, time.Microsecond},
		{"faster with every step", func(step int) int { return 100 - step }, time.Microsecond},
		{"one slow step", func(step int) int { return max(0, 1000*(step-8)*(10-step)) }, 0},
	} {
		steps := 0
		q := &tickQueue{more: func() time.Duration { return time.Duration(c.more(steps)) * time.Microsecond }}
		b := newBench(t, q, true)
		p, err := b.Profile(10, func() error {
			steps++
			return b.step(0, 10, 0)
		})
		if err != nil || p.Gaps().Abs() > c.most {
			t.Errorf("%s: error %v, a step of %v with gaps of %v, want at most %v", c.name, err, p.Step, p.Gaps(), c.most)
		}
	}
}

// TestProfileOfHiddenLayers counts the work of a dgrad and its wgrad in one launch, and the bytes of transposes, alone
// and with a dgrad.
func TestProfileOfHiddenLayers(t *testing.T) {
	for wants, want := range map[bool][]OpTime{
		false: {{"dgrad+wgrad+sgd", "[12,6]·[6,8]", 1, 10 * time.Microsecond, 4 * 12 * 6 * 8, 4 * (2*8*6 + 12*6 + 2*12*8)}},
		true: {
			{"transpose", "[12,6]", 1, 10 * time.Microsecond, 0, 2 * 4 * 12 * 6},
			{"dgrad+drelu", "[12,6]·[6,8]", 1, 10 * time.Microsecond, 2 * 12 * 6 * 8, 4 * (12*6 + 6*8 + 3*12*8)},
		},
	} {
		b := newBench(t, &tickQueue{wants: wants}, true)
		first, w, last := b.tensor(t, 3, 8), b.tensor(t, 8, 6), b.tensor(t, 6, 2)
		input, x, dx, dy := b.tensor(t, 12, 3), b.tensor(t, 12, 8), b.tensor(t, 12, 6), b.tensor(t, 12, 2)
		p, err := b.Profile(2, func() error {
			b.Backward([]Tensor{first, w, last}, []Tensor{input, x, dx}, dy, dx, 1)
			return b.EndStep()
		})
		if err != nil || len(p.Ops) != len(want)+1 || !slices.Equal(p.Ops[:len(want)], want) {
			t.Errorf("error %v, %+v, want %+v first", err, p.Ops, want)
		}
	}
}

// TestRecordedGroups wants the same name for wgrads of one layer with any input, and what a GEMM of a chain reads from
// the one before not to count as bytes.
func TestRecordedGroups(t *testing.T) {
	relu := kernels.GEMM{Epilogue: kernels.Activate, C: 8, M: 3, N: 4, K: 5}
	for _, c := range []struct {
		name  string
		bytes float64
		group []kernels.GEMM
	}{
		{"wgrad+sgd", 4 * 4 * 4 * 4, []kernels.GEMM{{Layout: kernels.TN, Epilogue: kernels.SGD, M: 4, N: 4, K: 4}}},
		{"wgrad+sgd", (1 + 3*4) * 4 * 4, []kernels.GEMM{{Layout: kernels.TN, Epilogue: kernels.SGD, Indices: 1, M: 4, N: 4, K: 4}}},
		{"wgrad", 3 * 4 * 4 * 4, []kernels.GEMM{{Layout: kernels.TN, M: 4, N: 4, K: 4}}},
		{"wgrad", (1 + 2*4) * 4 * 4, []kernels.GEMM{{Layout: kernels.TN, Indices: 1, M: 4, N: 4, K: 4}}},
		{"gemm+relu", 4 * (3*5 + 5*4 + 3*4 + 4*6 + 3*6), []kernels.GEMM{relu, {Epilogue: kernels.Activate, C: 9, A: 8, M: 3, N: 6, K: 4}}},
	} {
		var got Launch
		r := Observe(new(chainQueue), func(l Launch, _ func() error) error { got = l; return nil })
		if err := r.GroupedGEMM(c.group); err != nil || got.Name != c.name || got.Bytes != c.bytes {
			t.Errorf("%v, %+v, want %+v", err, got, c)
		}
	}
}

// TestProfilePutsLikeTogether profiles two equal operations in a step.
func TestProfilePutsLikeTogether(t *testing.T) {
	b := newBench(t, new(tickQueue), true)
	p, err := b.Profile(3, func() error {
		b.Linear(b.w0, b.w1)
		b.Linear(b.w0, b.w1)
		return b.EndStep()
	})
	if err != nil || len(p.Ops) != 1 || p.Ops[0].Count != 2 || p.Ops[0].Time != 20*time.Microsecond || p.Ops[0].FLOPs != 2*2*12*8*10 {
		t.Errorf("error %v, %+v", err, p)
	}
}

// TestProfileFaults makes one of the steps fail.
func TestProfileFaults(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	for bad := range 7 { // the first step, three that are timed apart, three together
		b.fails(t, bad, func(step func() error) error { _, err := b.Profile(3, step); return err })
	}
}

// fails wants an error of f, for which a step fails after some that do not, and the next step to work.
func (b bench) fails(t *testing.T, good int, f func(step func() error) error) {
	t.Helper()
	steps := 0
	err := f(func() error {
		if steps++; steps == good+1 {
			return errors.New("no step")
		}
		return b.step(0, 10, 0)
	})
	if err == nil || err.Error() != "no step" {
		t.Errorf("step %d: error %v", good+1, err)
	}
	if err := b.step(0, 10, 0); err != nil {
		t.Errorf("the next step: %v", err)
	}
}
