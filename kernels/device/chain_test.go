package device

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/internal/must"
	"mlpool/kernels"
)

// chainQueue takes GEMMs of up to 16 columns in chains, and notes the chains. If fault is set, chains fail.
type chainQueue struct {
	HostQueue
	chains []string
	fault  error
}

func (q *chainQueue) Chains(g kernels.GEMM) bool { return g.N <= 16 && g.K <= 16 }

func (q *chainQueue) GroupedGEMM(group []kernels.GEMM) error {
	if group[0].Layout == kernels.TN {
		return q.HostQueue.GroupedGEMM(group)
	}
	q.chains = append(q.chains, fmt.Sprint(len(group), gemmName(group[0])))
	if q.fault != nil {
		return q.fault
	}
	for i, g := range group {
		if i > 0 && (g.A != group[i-1].C || g.Prefetch&kernels.PrefetchA != 0) {
			return fmt.Errorf("GEMM %d of the chain: %+v", i, g)
		}
		if err := q.GEMM(g); err != nil {
			return err
		}
	}
	return nil
}

// TestChain wants training steps with chains to leave the weights that others leave.
func TestChain(t *testing.T) {
	for _, c := range []struct {
		widths []int // of hidden layers; the input has 12 columns
		chains []string
	}{
		{[]int{16, 16, 16}, []string{"3gemm+relu", "2dgrad+drelu"}},
		{[]int{24, 8, 16, 24, 8}, []string{"1gemm+relu", "1dgrad+drelu"}},
		{[]int{8, 16, 20, 4, 8, 12}, []string{"2gemm+relu", "2gemm+relu", "2dgrad+drelu", "1dgrad+drelu"}},
		{slices.Repeat([]int{4}, 2*kernels.MaxGroup), []string{"16gemm+relu", "16gemm+relu", "16dgrad+drelu", "15dgrad+drelu"}},
	} {
		var got [2][][]float32
		chains := new(chainQueue)
		for i, q := range []Queue{new(HostQueue), chains} {
			b := newBench(t, q, true)
			some := func(rows, cols int) Tensor {
				x, data := b.tensor(t, rows, cols), make([]float32, rows*cols)
				for i := range data {
					data[i] = float32(7*i%11-5) / 8
				}
				must.OK(t, b.Write(x, tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))))
				return x
			}
			x, input := some(13, 12), 12
			l := layers{dy: some(13, 10)}
			for _, width := range append(c.widths, 10) {
				l.w, input = append(l.w, some(input, width)), width
			}
			for step := range 2 {
				h := b.Hidden(x, l.w[:len(c.widths)]...)
				l.x = append([]Tensor{x}, h...)
				l.dx = b.output("dx", 13, h[len(h)-1].cols, Float32)
				must.OK(t, q.Upload(l.dx.addr(), make([]byte, l.dx.bytes())))
				must.OK(t, q.GEMM(kernels.GEMM{Layout: kernels.NT, C: l.dx.addr(), A: l.dy.addr(), B: l.w[len(l.w)-1].addr(), M: 13, N: l.dx.cols, K: 10}))
				before, err := b.Dense(l.w[1])
				must.OK(t, err, b.backward(l))
				if after, err := b.Dense(l.w[1]); err != nil || slices.Equal(after.Data().([]float32), before.Data().([]float32)) {
					t.Errorf("widths %v: step %d changed no weights", c.widths, step)
				}
			}
			for _, w := range l.w {
				dense, err := b.Dense(w)
				must.OK(t, err)
				got[i] = append(got[i], dense.Data().([]float32))
			}
		}
		if !slices.EqualFunc(got[0], got[1], slices.Equal) {
			t.Errorf("widths %v: weights %v, and with chains %v", c.widths, got[0], got[1])
		}
		if want := slices.Concat(c.chains, c.chains); !slices.Equal(chains.chains, want) {
			t.Errorf("widths %v: chains %q, want %q", c.widths, chains.chains, want)
		}
	}
}

// TestChainFails wants a step whose chain fails to launch nothing after it, and the next step to begin anew.
func TestChainFails(t *testing.T) {
	q, names := new(chainQueue), []string(nil)
	b := newBench(t, Observe(q, func(l Launch, queue func() error) error { names = append(names, l.Shape); return queue() }), true)
	wide, narrow := b.tensor(t, 8, 24), b.tensor(t, 24, 8)
	for fault, want := range map[error][]string{
		errors.New("no chain"): {"[13,12]·[12,8]"},
		nil:                    {"[13,12]·[12,8]", "[13,8]·[8,24]", "[13,24]·[24,8]"},
	} {
		q.fault, names = fault, nil
		b.Hidden(b.tensor(t, 13, 12), b.w0, wide, narrow)
		if err := b.EndStep(); !errors.Is(err, fault) || !slices.Equal(names, want) {
			t.Errorf("fault %v: %v, and launches of %q, want %q", fault, err, names, want)
		}
	}
}
