package device

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// TestReduceOrder checks a step of five layers, and the forward pass after it. With a small batch
// the updates of an upper layer move during the dgrads below it, else all of them move during wgrads
// and the next forward pass, which waits for each before it reads its weights.
func TestReduceOrder(t *testing.T) {
	for _, c := range []struct {
		name      string
		ranks     int
		symmetric bool
		expected  ordered
	}{
		{"without symmetric memory", 2, false, smallBatch},
		{"two ranks", 2, true, smallBatch},
		{"three ranks", 3, true, smallBatch},
		{"large batch", 3, true, largeBatch},
		{"large batch in bf16", 3, true, ordered{kernels.BF16, 2048, smallBatch.buckets, smallBatch.forward, smallBatch.backward}},
	} {
		t.Run(c.name, func(t *testing.T) { testReduceOrder(t, c.ranks, c.symmetric, c.expected) })
	}
}

// ordered has the expected operations for a batch size.
type ordered struct {
	precision kernels.Precision
	rows      int
	buckets   []string // by their layers
	forward   []string
	backward  []string // of it, buckets are exchanged after their wgrads
}

var (
	smallBatch = ordered{kernels.FP32, 4, []string{"2", "4 0", "1", "3"},
		[]string{"wait for 1", "forward 0", "wait for 2", "forward 1", "forward 2, prefetched", "wait for 3", "forward 3", "classifier 4"},
		[]string{"dgrad 3", "dgrad 2", "wgrads [2]", "dgrad 1", "wgrads [4 0]", "wgrads [1]", "wgrads [3]"},
	}
	largeBatch = ordered{kernels.FP32, 2048, []string{"4 0", "1", "2", "3"},
		[]string{"wait for 0", "forward 0", "wait for 1", "forward 1", "wait for 2", "forward 2", "wait for 3", "forward 3", "classifier 4"},
		[]string{"dgrad 3", "dgrad 2", "dgrad 1", "wgrads [4 0]", "wgrads [1]", "wgrads [2]", "wgrads [3]"},
	}
)

// all returns the operations of the backward pass, with those that exchange its buckets.
func (o ordered) all() (all []string) {
	for _, op := range o.backward {
		all = append(all, op)
		if layers, ok := strings.CutPrefix(op, "wgrads "); ok {
			all = append(all, "exchange "+layers)
		}
	}
	return all
}

// next returns the operations of a forward pass behind a backward pass. In symmetric memory an exchange
// runs beside GEMMs.
func (o ordered) next(symmetric bool) (all []string) {
	last := slices.IndexFunc(o.forward, func(op string) bool { return op == fmt.Sprint("wait for ", len(o.buckets)-1) })
	for i, op := range o.forward {
		if symmetric && i < last && strings.HasPrefix(op, "forward") {
			op += " beside an exchange"
		}
		all = append(all, op)
	}
	return all
}

func testReduceOrder(t *testing.T, ranks int, symmetric bool, expected ordered) {
	d, q, _, w := dataParallel(t, expected.precision, ranks, symmetric, expected.rows, 2200, 1500, 1500, 1500, 1500, 10)
	last := fmt.Sprint("wait for ", len(expected.buckets)-1)
	begin := []string{"all-reduce", fmt.Sprint("wait for ", len(expected.buckets))}
	for _, layers := range expected.buckets {
		begin = append(begin, "exchange ["+layers+"]")
	}
	begin = append(begin, last, "synchronize")
	if !slices.Equal(q.log, begin) {
		t.Errorf("DataParallel does %q, want %q", q.log, begin)
	}
	images, labels, indices := put(t, d, tensor.Uint8, 4, 2200), put(t, d, tensor.Uint8, 4), put(t, d, tensor.Int32, 4)
	rows, x, h, dlogits := put(t, d, tensor.Float32, 2, 4), someValues(t, d, 4, 2200), someValues(t, d, 4, 1500), someValues(t, d, 4, 10)
	step := func(backward bool) {
		t.Helper()
		q.log, q.forked = nil, -1
		x, y := d.Gather(images, labels, indices, 0, 4)
		inputs := []Tensor{x}
		for _, one := range w[:4] {
			x = d.Hidden(x, one)[0]
			inputs = append(inputs, x)
		}
		dlogits, dx := d.Classifier(x, w[4], y, rows, 0)
		if backward {
			d.Backward(w, inputs, dlogits, dx, 0.1)
		}
		must.OK(t, d.EndStep())
	}
	forward := []string{"forward 0", "forward 1, prefetched", "forward 2, prefetched", "forward 3, prefetched", "classifier 4"}
	step(true)
	if want := append(forward, expected.all()...); !slices.Equal(q.log[1:], want[1:]) {
		t.Errorf("a step is %q, want %q", q.log, want)
	}
	must.OK(t, d.Mark(0)) // waits for no bucket
	step(false)
	if want := expected.next(symmetric); !slices.Equal(q.log, want) {
		t.Errorf("the next forward pass is %q, want %q", q.log, want)
	}
	q.log = nil
	step(true)
	end := []string{last, "synchronize"}
	if err := d.Synchronize(); err != nil || !slices.Equal(q.log[len(q.log)-len(end):], end) {
		t.Errorf("%v, %q, want %q last", err, q.log, end)
	}
	q.log = nil
	inputs := []Tensor{x, h, h, h, h}
	d.Backward(w, inputs, dlogits, h, 0.1)
	first := len(q.log)
	d.Backward(w, inputs, dlogits, h, 0.1)
	// The wait for the last bucket is also for those before it.
	if err := d.EndStep(); err != nil || slices.Index(q.log[first:], last) != 0 {
		t.Errorf("%v, a Backward behind another begins with %q, want %q", err, q.log[first:], last)
	}
	must.OK(t, d.Synchronize())
}

// TestOneBucket has a model of one bucket, which in symmetric memory the main queue exchanges.
func TestOneBucket(t *testing.T) {
	for symmetric, want := range map[bool][]string{
		false: {"all-reduce", "wait for 1", "exchange [1 0]", "wait for 0", "synchronize"},
		true:  {"all-reduce", "wait for 1", "exchange [1 0]", "synchronize"},
	} {
		d, q, _, w := dataParallel(t, kernels.FP32, 2, symmetric, 4, 4, 4, 2)
		if !slices.Equal(q.log, want) {
			t.Errorf("symmetric memory %v: %q, want %q", symmetric, q.log, want)
		}
		x, dlogits := put(t, d, tensor.Float32, 4, 4), put(t, d, tensor.Float32, 4, 2)
		d.Backward(w, []Tensor{x, x}, dlogits, x, 0.1)
		d.Hidden(x, w[0])
		if err := d.EndStep(); err != nil || q.log[len(q.log)-1] != "forward 0" {
			t.Errorf("symmetric memory %v: %v, weights that an exchange writes are read in %q", symmetric, err, q.log)
		}
	}
}

// TestGather wants weights gathered once after a step in bf16, and before they are read. Each rank has had
// only its part.
func TestGather(t *testing.T) {
	d, q, _, w := dataParallel(t, kernels.BF16, 2, true, 4, 1500, 1500, 1500, 10)
	x, h, dlogits := someValues(t, d, 4, 1500), someValues(t, d, 4, 1500), someValues(t, d, 4, 10)
	gathered := []string{"wait for 1", "gather [2 0]", "gather [1]"}
	for _, c := range []struct {
		name string
		read func() error
		want []string
	}{
		{"Checksum before a step", func() error { _, err := d.Checksum(w[1]); return err }, nil},
		{"Dense", func() error { _, err := d.Dense(w[1]); return err }, gathered},
		{"Checksum", func() error { _, err := d.Checksum(w[0]); return err }, gathered},
		{"Dense of other tensors", func() error { _, err := d.Dense(h); return err }, gathered[:1]},
	} {
		if c.want != nil {
			d.Backward(w, []Tensor{x, h, h}, dlogits, h, 0.1)
			must.OK(t, d.EndStep())
		}
		for range 2 {
			q.log = nil
			if err := c.read(); err != nil || !slices.Equal(q.log, c.want) {
				t.Errorf("%s: %v, %q, want %q", c.name, err, q.log, c.want)
			}
			c.want = nil
		}
	}
	before, err := d.Checksum(w[1])
	after, err2 := uint64(0), q.Upload(w[1].rounded.Addr, []byte{1})
	if err == nil && err2 == nil {
		after, err = d.Checksum(w[1])
	}
	if err := errors.Join(err, err2); err != nil || before == after {
		t.Errorf("%v: a bit of a rounded copy changed, and its checksum did not", err)
	}
}

// TestEndAfterError wants memory to be free only after the work of the side queue, also if a Backward failed.
func TestEndAfterError(t *testing.T) {
	d, q, comm, w := dataParallel(t, kernels.FP32, 2, true, 4, 1500, 1500, 1500, 10)
	comm.Abort(errors.New("rank 0 is gone"))
	d.Backward(w, nil, w[0], w[0], 0)
	q.log = nil
	err := d.EndDataParallel()
	if want := []string{"wait for 2", "synchronize", "free"}; err != nil || !slices.Equal(q.log, want) {
		t.Errorf("%v, %q, want %q", err, q.log, want)
	}
	comm.err = nil
}

// TestBuckets checks the layers of the buckets of models, by their widths from the input on.
func TestBuckets(t *testing.T) {
	deep := make([]int, 21)
	for i := range deep {
		deep[i] = 16
	}
	for _, c := range []struct {
		rows   int
		values Kind
		widths []int
		want   string
	}{
		{64, Float32, []int{784, 10}, "[[0]]"},
		{64, Float32, []int{784, 784, 784, 784, 784, 10}, "[[2 4 0 1 3]]"}, // 3 would be less than half a bucket
		{64, Float32, []int{784, 1024, 1024, 1024, 1024, 10}, "[[2 4 0] [1 3]]"},
		{64, Float32, []int{784, 2048, 2048, 2048, 2048, 10}, "[[2] [4 0] [1] [3]]"},
		{64, Float32, deep, "[[17 16 15 14 13 12 11 10 9 19 0 1 2 3 4 5] [6 7 8 18]]"}, // no more than a group
		{4096, Float32, []int{784, 10}, "[[0]]"},
		{4096, Float32, []int{784, 2048, 2048, 2048, 2048, 10}, "[[4 0] [1] [2] [3]]"},
		{4096, BF16, []int{784, 2048, 2048, 2048, 2048, 10}, "[[2] [4 0] [1] [3]]"},
		{1024, Float32, []int{784, 5000, 5000, 10}, "[[2 0] [1] [1] [1]]"},
		{1023, Float32, []int{784, 5000, 5000, 10}, "[[2 0] [1]]"},
		{1024, Float32, []int{784, 5000, 5000, 5000, 10}, "[[1] [3 0] [2]]"},
	} {
		var w []Tensor
		for i := range len(c.widths) - 1 {
			w = append(w, Tensor{rows: c.widths[i], cols: c.widths[i+1], kind: Float32})
		}
		var got [][]int
		for _, b := range bucketsOf(w, c.rows, earlyFrom(len(w), c.rows, c.values), 2) {
			var layers []int
			for _, p := range b.parts {
				layers = append(layers, p.layer)
			}
			got = append(got, layers)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%d rows, %v, %v: buckets %v, want %s", c.rows, c.values, c.widths, got, c.want)
		}
	}
}

// TestReduceFaults wants errors of wrong calls, and after the end of a rank.
func TestReduceFaults(t *testing.T) {
	d, _, comm, w := dataParallel(t, kernels.FP32, 2, false, 4, 4, 4, 4)
	d.CaptureFrom(allocator.NewMalloc(NewHostDriver()))
	results, x := put(t, d, tensor.Float32, 3, 2), put(t, d, tensor.Float32, 2, 4)
	backward := func() error {
		d.Backward([]Tensor{w[1], w[0]}, []Tensor{x, x}, x, x, 0.1)
		return d.EndStep()
	}
	for want, err := range map[string]error{
		"data-parallel already":            d.DataParallel(w, 2),
		"no rows of floats":                d.AllReduce(results, 2, 2),
		"not those passed to DataParallel": backward(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	must.OK(t, d.AllReduce(results, 0, 3))
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
	must.OK(t, d.Forget())
}

// TestParts wants ranks whose upper layer is exchanged in parts to train as others, bit for bit, whether kernels take a
// part or only the whole.
func TestParts(t *testing.T) {
	defer func(bucket, part int) { bucketBytes, partBytes = bucket, part }(bucketBytes, partBytes)
	bucketBytes = 48 << 10
	for _, precision := range []kernels.Precision{kernels.FP32, kernels.BF16} {
		for _, ranks := range []int{2, 3, 5, 16} {
			var want []stepped // without parts
			for _, c := range []struct {
				partBytes int
				takes     bool
			}{{math.MaxInt / 2, true}, {128 << 10, true}, {128 << 10, false}} {
				partBytes = c.partBytes
				got := make([]stepped, ranks)
				var group sync.WaitGroup
				for rank, comm := range collective.NewLocal(ranks) {
					group.Go(func() {
						got[rank] = stepOf(t, &partQueue{HostQueue{Precision: precision}, c.takes}, comm, 8, 4200, 34, 10)
					})
				}
				group.Wait()
				parts := want != nil
				if !parts {
					want = got
				}
				for rank := range got {
					if (got[rank].buckets > want[0].buckets) != parts {
						t.Errorf("%+v: %d buckets, without parts %d", c, got[rank].buckets, want[0].buckets)
					}
					if !reflect.DeepEqual(got[rank].weights, want[0].weights) {
						t.Errorf("%v, %d ranks, %+v: rank %d has other weights", precision, ranks, c, rank)
					}
				}
			}
		}
	}
}

// partQueue says whether its kernels take a stride.
type partQueue struct {
	HostQueue
	takes bool
}

func (q *partQueue) TakesStride(kernels.GEMM) bool { return q.takes }

// stepped has what is left of a rank's step.
type stepped struct {
	buckets int
	weights [][]float32
}

// stepOf trains a rank for a step on rows of its own.
func stepOf(t *testing.T, q Queue, c collective.Collective, widths ...int) (s stepped) {
	alloc := allocator.NewMalloc(NewHostDriver())
	d := New(q, alloc, true)
	var all []Tensor
	var errs []error
	put := func(x Tensor, err error) Tensor {
		all, errs = append(all, x), append(errs, err)
		return x
	}
	values := func(seed, rows, cols int) *tensor.Dense {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(math.Sin(float64(seed + i)))
		}
		return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(x))
	}
	var w []Tensor
	for i, width := range widths[:len(widths)-1] {
		w = append(w, put(d.Weights("weights", values(i, width, widths[i+1]))))
	}
	const rows = 3
	images := put(d.FromDense("images", tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(rows, widths[0]), tensor.WithBacking(slices.Repeat([]uint8{uint8(1 + c.Rank()), 7}, rows*widths[0]/2)))))
	labels := put(d.FromDense("labels", tensor.New(tensor.WithShape(rows), tensor.WithBacking([]uint8{1, 2, 3}))))
	indices := put(d.FromDense("indices", tensor.New(tensor.WithShape(rows), tensor.WithBacking([]int32{0, 1, 2}))))
	results := put(d.FromDense("results", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2, rows))))
	errs = append(errs, d.SetCollective(c), d.DataParallel(w, partRows))
	s.buckets = len(d.ranks.buckets)
	x, y := d.Gather(images, labels, indices, 0, rows)
	inputs := []Tensor{x}
	for _, one := range w[:len(w)-1] {
		x = d.Hidden(x, one)[0]
		inputs = append(inputs, x)
	}
	dlogits, dx := d.Classifier(x, w[len(w)-1], y, results, 0)
	d.Backward(w, inputs, dlogits, dx, 0.1)
	errs = append(errs, d.EndStep())
	for _, one := range w {
		dense, err := d.Dense(one)
		errs = append(errs, err)
		if err == nil {
			s.weights = append(s.weights, dense.Float32s())
		}
	}
	errs = append(errs, d.CloseCollective())
	for _, one := range all {
		errs = append(errs, d.Free(one))
	}
	if err := errors.Join(append(errs, alloc.Close())...); err != nil {
		t.Error(err)
		c.Abort(err)
	}
	return s
}
