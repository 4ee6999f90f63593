package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/kernels"
)

// notedQueue takes down what it and its side queue are given to do, and does nothing.
type notedQueue struct {
	HostQueue
	layers map[uintptr]int // by the address of weights and updates
	log    []string
	device *Device
	forked int // notes when the side queue was made to wait for the queue
	closed bool
}

func (q *notedQueue) note(format string, args ...any) error {
	q.log = append(q.log, fmt.Sprintf(format, args...))
	return nil
}

func (q *notedQueue) Classifier(c kernels.Classifier) error {
	return q.note("classifier %d", q.layers[c.W])
}

func (q *notedQueue) GEMM(g kernels.GEMM) error {
	switch {
	case g.Layout == kernels.NT:
		return q.note("dgrad %d", q.layers[g.B])
	case g.Prefetch&kernels.PrefetchB != 0:
		return q.note("forward %d, prefetched", q.layers[g.B])
	}
	return q.note("forward %d", q.layers[g.B])
}

func (q *notedQueue) GroupedGEMM(group []kernels.GEMM) error {
	var layers []int
	for _, g := range group {
		layers = append(layers, q.layers[g.C])
	}
	return q.note("wgrads %v", layers)
}

func (q *notedQueue) NewSideQueue() (SideQueue, error) {
	side, err := q.HostQueue.NewSideQueue()
	return notedSide{side, q}, err
}

type notedSide struct {
	SideQueue
	q *notedQueue
}

func (n notedSide) Fork() error { n.q.forked = len(n.q.log); return nil }

func (n notedSide) Do(func(uintptr) error) error {
	if n.q.forked != len(n.q.log) {
		return errors.New("an all-reduce that waits for nothing")
	}
	return n.q.note("all-reduce")
}

func (n notedSide) Record(i int) error {
	if last := n.q.log[len(n.q.log)-1]; i < len(n.q.device.reducer.buckets) && !strings.HasPrefix(last, "add and zero") {
		return fmt.Errorf("the weights are those of a bucket once %s is done", last)
	}
	return nil
}

func (n notedSide) Join(i int) error { return n.q.note("wait for %d", i) }
func (n notedSide) Close() error     { n.q.closed = true; return n.SideQueue.Close() }
func (n notedSide) AddAndZero(pairs []kernels.AddPair) error {
	var layers []int
	for _, p := range pairs {
		n.q.layers[p.X] = n.q.layers[p.Y]
		layers = append(layers, n.q.layers[p.Y])
	}
	return n.q.note("add and zero %v", layers)
}

// ofTwo is a rank of two.
type ofTwo struct{ err error }

func (ofTwo) Rank() int                             { return 1 }
func (ofTwo) Size() int                             { return 2 }
func (o *ofTwo) Err() error                         { return o.err }
func (o *ofTwo) Abort(reason error)                 { o.err = reason }
func (ofTwo) Close() error                          { return nil }
func (ofTwo) AllReduce(uintptr, int, uintptr) error { return nil }

// dataParallel is a device whose weights, of layers as wide as given, are data-parallel.
func dataParallel(t *testing.T, widths ...int) (d *Device, q *notedQueue, comm *ofTwo, w []Tensor) {
	t.Helper()
	q, comm = &notedQueue{layers: map[uintptr]int{}}, new(ofTwo)
	alloc := allocator.NewMalloc(NewHostDriver())
	d = New(q, alloc, true)
	q.device = d
	if err := d.SetCollective(comm); err != nil {
		t.Fatal(err)
	}
	for i := range len(widths) - 1 {
		one, err := d.FromDense("weights", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(widths[i], widths[i+1])))
		if err != nil {
			t.Fatal(err)
		}
		w = append(w, one)
		q.layers[one.addr()] = i
	}
	if err := d.DataParallel(w); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		errs := []error{d.CloseCollective()}
		for _, one := range w {
			errs = append(errs, d.Free(one))
		}
		if err := errors.Join(append(errs, alloc.Close())...); err != nil || !q.closed {
			t.Errorf("%v, side queue closed %v", err, q.closed)
		}
	})
	return d, q, comm, w
}

// TestReduceOrder spells out a step of five layers, and the forward pass after it: the
// all-reduce of the upper layers goes on beside the dgrads below, that of the lower ones
// beside wgrads and the next forward pass, which waits for each where it comes to it.
func TestReduceOrder(t *testing.T) {
	d, q, _, w := dataParallel(t, 784, 1500, 1500, 1500, 1500, 10)
	if want := []string{"all-reduce", "add and zero [4 3]", "all-reduce", "add and zero [0 1]", "all-reduce", "add and zero [2]", "wait for 0", "wait for 1", "wait for 2"}; !slices.Equal(q.log, want) {
		t.Errorf("DataParallel does %q, want %q", q.log, want)
	}
	images, errI := d.FromDense("images", tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(4, 784)))
	labels, errL := d.FromDense("labels", tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(4)))
	indices, errX := d.FromDense("indices", tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(4)))
	rows, errR := d.FromDense("rows", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2, 4)))
	if err := errors.Join(errI, errL, errX, errR); err != nil {
		t.Fatal(err)
	}
	step := func(backward bool) {
		t.Helper()
		q.log, q.forked = nil, -1
		x, y := d.Gather(images, labels, indices, 0, 4)
		inputs := []Tensor{x}
		for _, one := range w[:4] {
			x = d.LinearReLU(x, one)
			inputs = append(inputs, x)
		}
		dlogits, dx := d.Classifier(x, w[4], y, rows, 0)
		if backward {
			d.Backward(w, inputs, dlogits, dx, 0.1)
		}
		if err := d.EndStep(); err != nil {
			t.Fatal(err)
		}
	}
	forward := []string{"forward 0", "forward 1, prefetched", "forward 2, prefetched", "forward 3, prefetched", "classifier 4"}
	backward := []string{
		"dgrad 3", "wgrads [4 3]", "all-reduce", "add and zero [4 3]", "dgrad 2", "dgrad 1",
		"wgrads [0 1]", "all-reduce", "add and zero [0 1]", "wgrads [2]", "all-reduce", "add and zero [2]",
	}
	step(true)
	if want := append(forward, backward...); !slices.Equal(q.log[1:], want[1:]) {
		t.Errorf("a step is %q, want %q", q.log, want)
	}
	step(false)
	want := []string{"wait for 1", "forward 0", "forward 1, prefetched", "wait for 2", "forward 2", "wait for 0", "forward 3", "classifier 4"}
	if !slices.Equal(q.log, want) {
		t.Errorf("the next forward pass is %q, want %q", q.log, want)
	}
	q.log = nil
	step(true)
	if err := d.Synchronize(); err != nil || !slices.Equal(q.log[len(q.log)-3:], []string{"wait for 0", "wait for 1", "wait for 2"}) {
		t.Errorf("%v, %q", err, q.log)
	}
	for _, one := range []Tensor{images, labels, indices, rows} {
		if err := d.Free(one); err != nil {
			t.Error(err)
		}
	}
}

// TestReduceFaults has a rank do what it must not, and end.
func TestReduceFaults(t *testing.T) {
	d, _, comm, w := dataParallel(t, 4, 4, 4)
	d.CaptureFrom(allocator.NewMalloc(NewHostDriver()))
	defer func() {
		if err := d.Forget(); err != nil {
			t.Error(err)
		}
	}()
	results, err := d.FromDense("results", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(3, 2)))
	if err != nil {
		t.Fatal(err)
	}
	x, err := d.FromDense("x", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2, 4)))
	if err != nil {
		t.Fatal(err)
	}
	backward := func() error {
		d.Backward([]Tensor{x, w[1]}, []Tensor{x, x}, x, x, 0.1)
		return d.EndStep()
	}
	for want, err := range map[string]error{
		"data-parallel already":     d.DataParallel(w),
		"no rows of floats":         d.AllReduce(results, 2, 2),
		"not those of DataParallel": backward(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "do not fit") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := d.AllReduce(results, 0, 3); err != nil {
		t.Error(err)
	}
	comm.Abort(errors.New("rank 0 is gone"))
	_, dense := d.Dense(w[0])
	_, sum := d.Checksum(w[0])
	replay := d.Replay(1, func() error { return nil })
	for _, err := range []error{dense, sum, d.Synchronize(), replay} {
		if err == nil || err.Error() != "rank 0 is gone" {
			t.Errorf("%v: what an all-reduce left unfinished is taken for its sum", err)
		}
	}
	comm.err = nil
	if err := errors.Join(d.Free(results), d.Free(x)); err != nil {
		t.Error(err)
	}
}
