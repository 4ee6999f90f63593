package kerneltest

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"mlpool/kernels"
)

// products are the matrix products that there are. Order marks those of images.
var products = []kernels.Product{
	{Form: kernels.NN, Epilogue: kernels.Store},
	{Form: kernels.NT, Epilogue: kernels.Store},
	{Form: kernels.TN, Epilogue: kernels.Store},
	{Form: kernels.NN, Epilogue: kernels.ReLU},
	{Form: kernels.NT, Epilogue: kernels.Mask},
	{Form: kernels.TN, Epilogue: kernels.Add},
	{Form: kernels.NN, Epilogue: kernels.Store, Order: 1},
	{Form: kernels.TN, Epilogue: kernels.Store, Order: 1},
	{Form: kernels.NN, Epilogue: kernels.ReLU, Order: 1},
	{Form: kernels.TN, Epilogue: kernels.Add, Order: 1},
}

// largeMatMuls are products that training meets, and others of their size.
func (s *suite) largeMatMuls() {
	for _, p := range products {
		for _, z := range [][3]int{
			{64, 784, 784}, {32, 784, 784}, {784, 784, 64}, {784, 784, 32}, {64, 10, 784}, {64, 784, 10}, {784, 10, 64},
			{65, 1000, 333}, {1000, 65, 1000}, {333, 334, 61}, {130, 257, 129}, {1000, 784, 7}, {64, 2048, 300}, {200, 72, 2000},
		} {
			s.matmul(p, z[0], z[1], z[2])
		}
	}
}

// smallMatMuls goes through all mixes of sizes up to 32768 products.
func (s *suite) smallMatMuls() {
	for _, p := range products {
		for _, m := range sizes {
			for _, n := range sizes {
				for _, k := range sizes {
					if m*n*k <= 1<<15 {
						s.matmul(p, m, n, k)
					}
				}
			}
		}
	}
}

// fewMatMuls has a size for each way in which a kernel may go about it.
func (s *suite) fewMatMuls() {
	for _, p := range products {
		for _, z := range [][3]int{{33, 20, 300}, {7, 10, 140}, {65, 40, 64}, {20, 1030, 70}, {129, 57, 300}, {40, 33, 10}, {20, 48, 1008}, {116, 120, 100}} {
			s.matmul(p, z[0], z[1], z[2])
		}
	}
	s.several([3]int{33, 20, 300}, [3]int{40, 33, 10}, [3]int{129, 57, 65}, [3]int{113, 96, 64})
	s.several([3]int{116, 120, 100}, [3]int{228, 60, 128}, [3]int{116, 10, 100})
	s.several([3]int{7, 10, 140})
}

// updates are those of training steps, and odd ones.
func (s *suite) updates() {
	for _, z := range [][][3]int{
		{{784, 10, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}}, {{784, 10, 32}, {784, 784, 32}},
		{{784, 784, 64}, {784, 784, 1}, {784, 784, 61}, {784, 784, 65}, {784, 784, 128}, {784, 784, 129}},
		{{336, 10, 61}, {336, 336, 61}, {784, 336, 61}}, {{300, 2048, 64}, {2048, 2048, 64}, {2048, 10, 64}}, {{1, 1, 1}, {333, 334, 61}}, {{1000, 7, 1}, {130, 257, 129}},
		{{1000, 65, 1000}, {61, 13, 1000}, {31, 37, 41}, {43, 47, 53}}, {{0, 5, 5}, {40, 33, 10}, {5, 0, 5}, {20, 33, 0}}, {{5, 0, 5}}, {},
		slices.Repeat([][3]int{{40, 48, 10}}, kernels.MostUpdates),
		{{784, 784, 1024}, {784, 784, 1024}, {784, 10, 1024}}, {{336, 336, 1000}, {784, 336, 1000}}, {{784, 784, 200}, {130, 260, 129}},
		{{132, 228, 129}, {64, 112, 160}, {200, 20, 300}, {40, 48, 10}, {100, 20, 128}, {60, 116, 131}, {130, 33, 150}, {20, 10, 200}},
		slices.Repeat([][3]int{{20, 24, 132}, {20, 24, 12}}, kernels.MostUpdates/2),
	} {
		large := slices.ContainsFunc(z, func(z [3]int) bool { return z[0]*z[1]*z[2] > 4e6 })
		if !large || !s.slow() {
			s.several(z...)
		}
	}
	// Enough to fill a GPU, of the kind for which there is a kernel then.
	for _, exact := range []bool{true, false} {
		s.list(exact, 0, false, [][3]int{
			{784, 784, 131}, {40, 48, 10}, {784, 784, 129}, {500, 300, 150}, {1040, 20, 133}, {340, 336, 161}, {132, 228, 200}, {20, 20, 300}, {200, 10, 129},
		})
	}
}

// steps are some for which there is a kernel, where there is, and others.
func (s *suite) steps() {
	sizes := [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {7, 10, 20}, {61, 33, 70}, {64, 100, 100}}
	if !s.slow() {
		sizes = append(sizes, [][3]int{{64, 784, 784}, {64, 2048, 2048}, {61, 1500, 1500}, {33, 1280, 1412}, {1, 1300, 2051}, {65, 1300, 1300}}...)
	}
	for _, z := range sizes {
		s.step(z[0], z[1], z[2], false)
		s.step(z[0], z[1], z[2], true)
	}
	s.step(5, 1060, 1156, false)
	s.step(62, 1892, 1028, false)
}

// step compares a product and the update after it, as one operation.
func (s *suite) step(m, n, k int, unaligned bool) {
	for _, exact := range []bool{true, false} {
		f := s.factors(products[4], m, n, k, exact)
		a, b, y := f.in[0].([]float32), f.in[1].([]float32), f.in[2].([]float32)
		f.p.Alpha = rate
		u := factors{p: f.p.Update(), out: b, want: make([]float64, n*k), exact: exact}
		product(u.want, y, a, true, false, n, k, m)
		u.add()
		c := Call{Op: "Step", Products: []kernels.Product{f.p}, Arrays: []any{f.out, b, a, y}, Unaligned: unaligned}
		s.do(c, 2)
		s.compare(c, f)
		s.compare(c, u)
	}
}

// matmul compares one product, first on numbers whose sums are exact, then on
// others.
func (s *suite) matmul(p kernels.Product, m, n, k int) {
	for _, exact := range []bool{true, false} {
		f := s.factors(p, m, n, k, exact)
		c := Call{Op: "MatMul", Products: []kernels.Product{f.p}, Unaligned: s.r.IntN(3) == 0}
		c.Arrays = append([]any{f.out}, f.in...)
		s.do(c, 1)
		s.compare(c, f)
	}
}

// several compares updates of these m, n and k, as one operation.
func (s *suite) several(sizes ...[3]int) {
	for _, exact := range []bool{true, false} {
		s.list(exact, 1./3, s.r.IntN(4) == 0, sizes)
	}
}

// list is several once, with images for so many of the updates.
func (s *suite) list(exact bool, images float64, unaligned bool, sizes [][3]int) {
	c := Call{Op: "Updates", Unaligned: unaligned}
	var all []factors
	var in []any
	for _, z := range sizes {
		p := products[5]
		if s.r.Float64() < images {
			p = products[9]
		}
		f := s.factors(p, z[0], z[1], z[2], exact)
		all = append(all, f)
		c.Products, c.Arrays, in = append(c.Products, f.p), append(c.Arrays, f.out), append(in, f.in...)
	}
	c.Arrays = append(c.Arrays, in...)
	s.do(c, len(all))
	for _, f := range all {
		s.compare(c, f)
	}
}

// factors are a product, its operands, and what it must come to.
type factors struct {
	p     kernels.Product
	out   []float32
	in    []any // A, B, Y, Order
	want  []float64
	exact bool // the sums are
}

// tableRows is how many images a table has.
const tableRows = 50

func (s *suite) factors(p kernels.Product, m, n, k int, exact bool) factors {
	draw := s.floats
	if exact {
		draw = s.integers
	}
	p.M, p.N, p.K = m, n, k
	// What is here was copied: no operation writes it.
	p.Early = kernels.Early(s.r.IntN(8))
	f := factors{p: p, out: output(m * n), want: make([]float64, m*n), in: make([]any, 4), exact: exact}
	a, b := draw(m*k), draw(k*n)
	f.in[0], f.in[1] = a, b
	if p.Order != 0 {
		rows, cols := m, k
		if p.Form == kernels.TN {
			rows, cols = k, m
		}
		images, order := s.images(cols, exact), s.labels(rows, tableRows)
		for i := range rows {
			for j := range cols {
				a[i*cols+j] = float32(images[int(order[i])*cols+j]) / 255
			}
		}
		f.in[0], f.in[3] = images, order
	}
	product(f.want, a, b, p.Form == kernels.TN, p.Form == kernels.NT, m, n, k)
	switch p.Epilogue {
	case kernels.ReLU:
		for i := range f.want {
			f.want[i] = max(0, f.want[i])
		}
	case kernels.Mask:
		y := draw(m * n)
		f.in[2] = y
		for i := range f.want {
			if y[i] <= 0 {
				f.want[i] = 0
			}
		}
	case kernels.Add:
		copy(f.out, draw(m*n))
		f.p.Alpha = rate
		f.add()
	}
	return f
}

// rate is the alpha of updates, by which a multiplication is exact.
const rate = -0.125

// add makes want, which is a product, what out is after its addition.
func (f *factors) add() {
	for i := range f.want {
		f.want[i] = float64(f.out[i]) + float64(f.p.Alpha)*f.want[i]
	}
}

// images is a table of tableRows images; if exact, of pixels that become 0 or 1.
func (s *suite) images(cols int, exact bool) []uint8 {
	images := make([]uint8, tableRows*cols+guard)
	for i := range images {
		images[i] = uint8(s.r.Uint32())
		if exact {
			images[i] = 255 * (images[i] % 2)
		}
	}
	return images
}

func (s *suite) compare(c Call, f factors) {
	s.t.Helper()
	switch m, n, k := f.p.M, f.p.N, f.p.K; {
	case f.exact && f.p.Order == 0:
		s.equal(c, f.out, f.want)
	case f.exact: // but for the division by 255
		s.near(c, f.out, f.want, Tolerance, 1)
	default:
		// Where few sums nearly cancel, their error is measured against
		// the size that such sums have: |a·b| is 1/3 in the mean square.
		few := float64(max(1, min(m*n, m*k, k*n)))
		if f.p.Order != 0 {
			few /= 7 // images are never negative: their rounding is alike in every row
		}
		s.near(c, f.out, f.want, s.tolerance*scatter(few), math.Sqrt(float64(m*n*k))/3/2)
	}
}

// product: want[m,n] = a·b in float64, from a[m,k] or, if ta, a[k,m], and b[k,n]
// or, if tb, b[n,k].
func product(want []float64, a, b []float32, ta, tb bool, m, n, k int) {
	if m*n*k == 0 {
		return // which gonum refuses
	}
	blas64.Gemm(transpose(ta), transpose(tb), 1, matrix(a, m, k, ta), matrix(b, k, n, tb), 0,
		blas64.General{Rows: m, Cols: n, Stride: n, Data: want})
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}

func matrix(x []float32, rows, cols int, transposed bool) blas64.General {
	if transposed {
		rows, cols = cols, rows
	}
	data := make([]float64, rows*cols)
	for i := range data {
		data[i] = float64(x[i])
	}
	return blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: data}
}

func (s *suite) elementwise() {
	for _, n := range append(sizes, 4096, 100_003) {
		s.elements(n)
	}
}

// elements checks what works on n elements.
func (s *suite) elements(n int) {
	x, y := s.floats(n), s.floats(n)
	each := func(c Call, outputs int, out []float32, f func(i int) float64) {
		want := make([]float64, n)
		for i := range want {
			want[i] = f(i)
		}
		c.Sizes, c.Unaligned = []int{n}, s.r.IntN(2) == 0
		s.do(c, outputs)
		// An element is below 2: two roundings are off by less than 1e-7.
		s.near(c, out, want, 1e-7, math.Sqrt(float64(n)))
	}

	out := output(n)
	each(Call{Op: "ReLU", Arrays: []any{out, x}}, 1, out, func(i int) float64 { return max(0, float64(x[i])) })
	out = output(n)
	each(Call{Op: "ReLUBackward", Arrays: []any{out, x, y}}, 1, out, func(i int) float64 {
		if y[i] > 0 {
			return float64(x[i])
		}
		return 0
	})
	was, out := append([]float32(nil), y...), append([]float32(nil), y...)
	each(Call{Op: "Axpy", Arrays: []any{out, x}, Alpha: -0.3}, 1, out, func(i int) float64 {
		return float64(was[i]) - float64(float32(0.3))*float64(x[i])
	})
}

func (s *suite) softmax() {
	for _, rows := range sizes {
		for _, cols := range append(sizes, 16, 17) {
			if rows*cols <= 1<<17 {
				s.apart(rows, cols)
			}
		}
	}
	s.ties()
}

// logits has some rows so far apart that exp would overflow.
func (s *suite) logits(rows, cols int) []float32 {
	x := s.floats(rows * cols)
	for i := range rows * cols {
		x[i] *= float32([]int{1, 10, 200}[i/cols%3])
	}
	return x
}

// softmaxRow returns the probabilities and ln Σ exp(x - max) + max.
func softmaxRow[E float32 | float64](x []E) (p []float64, logSum float64) {
	largest, sum := math.Inf(-1), 0.
	for _, v := range x {
		largest = max(largest, float64(v))
	}
	for _, v := range x {
		p = append(p, math.Exp(float64(v)-largest))
		sum += p[len(p)-1]
	}
	for j := range p {
		p[j] /= sum
	}
	return p, math.Log(sum) + largest
}

func firstLargest[E float32 | float64](x []E) int {
	at := 0
	for j, v := range x {
		if v > x[at] {
			at = j
		}
	}
	return at
}

// apart checks softmax, cross-entropy and the gradient one after the other,
// each on the float32 output of the one before.
func (s *suite) apart(rows, cols int) {
	x, labels := s.logits(rows, cols), s.labels(rows, cols)
	p := output(rows * cols)
	c := Call{Op: "Softmax", Arrays: []any{p, x}, Sizes: []int{rows, cols}, Unaligned: s.r.IntN(2) == 0}
	var want []float64
	for i := range rows {
		row, _ := softmaxRow(x[i*cols : (i+1)*cols])
		want = append(want, row...)
	}
	s.do(c, 1)
	s.near(c, p, want, Tolerance, 0)

	loss, hit := output(rows), output(rows)
	wantLoss, wantHit := make([]float64, rows), make([]float64, rows)
	for i := range rows {
		row := p[i*cols : (i+1)*cols]
		row[labels[i]] = max(row[labels[i]], 1e-30) // so that the loss is finite
		wantLoss[i] = -math.Log(float64(row[labels[i]]))
		if firstLargest(row) == int(labels[i]) {
			wantHit[i] = 1
		}
	}
	c = Call{Op: "CrossEntropy", Arrays: []any{loss, hit, p, labels}, Sizes: []int{rows, cols}}
	s.do(c, 2)
	s.near(c, loss, wantLoss, Tolerance, 1e-3)
	s.equal(c, hit, wantHit)

	dx := output(rows * cols)
	for i := range want {
		want[i] = float64(p[i])
		if i%cols == int(labels[i/cols]) {
			want[i]--
		}
		want[i] /= float64(rows)
	}
	c = Call{Op: "SoftmaxCrossEntropyBackward", Arrays: []any{dx, p, labels}, Sizes: []int{rows, cols}}
	s.do(c, 1)
	s.near(c, dx, want, Tolerance, 1e-7)
}

// heads goes through all mixes of some rows, classes and lengths.
func (s *suite) heads() {
	for _, rows := range []int{1, 2, 7, 32, 61, 64, 65, 300} {
		for _, classes := range []int{1, 2, 10, 16} {
			for _, k := range []int{1, 2, 7, 33, 100, 784, 1000, 2048, 3000, 4096, 4100} {
				if !s.slow() || rows*classes*k <= 1<<16 {
					s.head(rows, classes, k)
				}
			}
		}
	}
	s.head(4097, 10, 13)
	s.headTies()
}

// head checks the last layer and its loss, with and without the gradients. One
// label in fifty is out of range.
func (s *suite) head(rows, classes, k int) {
	// An output of a ReLU: half of it is 0. A few rows are so large that exp
	// would overflow.
	x, w := s.floats(rows*k), s.floats(k*classes)
	for i := range rows * k {
		x[i] = max(0, x[i])
		if i/k%7 == 3 {
			x[i] *= 100
		}
	}
	for i := range k * classes {
		w[i] *= float32(3 / math.Sqrt(float64(k)))
	}
	labels, order := make([]uint8, tableRows+guard), s.labels(rows, tableRows)
	for i := range labels {
		labels[i] = uint8(s.r.IntN(classes))
	}
	labels[7] = uint8(classes + s.r.IntN(256-classes))

	logits, wantGrad, wantDX := make([]float64, rows*classes), make([]float64, rows*classes), make([]float64, rows*k)
	product(logits, x, w, false, false, rows, classes, k)
	wantLoss, sizes := make([]float64, rows), 0.
	for i := range rows {
		p, logSum := softmaxRow(logits[i*classes : (i+1)*classes])
		label := int(labels[order[i]])
		wantLoss[i] = math.NaN()
		if label < classes {
			wantLoss[i] = logSum - logits[i*classes+label]
			p[label]--
		}
		for j, v := range p {
			wantGrad[i*classes+j] = v / float64(rows)
			// A product's rounding errors go with its size.
			sizes += logits[i*classes+j] * logits[i*classes+j]
		}
		for l := range k {
			if x[i*k+l] > 0 {
				for j := range classes {
					wantDX[i*k+l] += wantGrad[i*classes+j] * float64(w[l*classes+j])
				}
			}
		}
	}
	size := math.Sqrt(sizes/float64(rows*classes)) + 1 // of a logit
	for _, gradient := range []bool{true, false} {
		var grad, dx any
		if gradient {
			grad, dx = output(rows*classes), output(rows*k)
		}
		loss, hit := output(rows), output(rows)
		c := Call{Op: "Head", Arrays: []any{grad, dx, loss, hit, x, w, labels, order}, Sizes: []int{rows, classes, k},
			Early: kernels.Early(s.r.IntN(8)), Unaligned: s.r.IntN(3) == 0}
		s.do(c, 4)
		var right, losses []float64
		var got []float32
		for i := range rows {
			row, label := logits[i*classes:(i+1)*classes], int(labels[order[i]])
			if label >= classes {
				if loss[i] == loss[i] || hit[i] != 0 {
					s.fail(c, "label %d of row %d gave the loss %v and %v hits", label, i, loss[i], hit[i])
				}
				continue
			}
			losses, got = append(losses, wantLoss[i]), append(got, loss[i])
			// Whether a row is hit is not known where its largest two are nearly equal.
			right = append(right, 0)
			if firstLargest(row) == label {
				right[len(right)-1] = 1
			}
			if nearTie(row, 1e-5*size) {
				right[len(right)-1] = float64(hit[i])
			}
			if float64(hit[i]) != right[len(right)-1] {
				s.fail(c, "row %d: %v hits", i, hit[i])
			}
		}
		s.near(c, got, losses, Tolerance*scatter(max(1, float64(rows)/7)), size*math.Sqrt(float64(rows))) // one row in seven is large
		if gradient {
			n := float64(rows)
			s.near(c, grad.([]float32), wantGrad, 2*Tolerance*size, 1e-2/math.Sqrt(n))
			s.near(c, dx.([]float32), wantDX, 4*Tolerance*size, 1e-2/math.Sqrt(n))
		}
	}
}

// nearTie says whether the largest two of a row are within a distance.
func nearTie(row []float64, distance float64) bool {
	at := firstLargest(row)
	for j, v := range row {
		if j != at && row[at]-v <= distance {
			return true
		}
	}
	return false
}

// headTies checks that the first of equal logits is the prediction.
func (s *suite) headTies() {
	const rows, classes, k = 5, 10, 3
	x, w := padded(make([]float32, rows*k)), padded(make([]float32, k*classes))
	x[1*k], x[2*k+1], x[3*k+2] = 1, 1, 1
	w[4], w[9] = 1, 1                                        // row 1: two largest
	w[classes+9] = 1                                         // row 2: the last
	w[2*classes+0], w[2*classes+3], w[2*classes+5] = 1, 1, 2 // row 3: neither of the two equal
	labels, order := append([]uint8{0, 4, 9, 5, 9}, make([]uint8, guard)...), append([]int32{0, 1, 2, 3, 4}, make([]int32, guard)...)
	hit := output(rows)
	c := Call{Op: "Head", Arrays: []any{output(rows * classes), output(rows * k), output(rows), hit, x, w, labels, order}, Sizes: []int{rows, classes, k}}
	s.do(c, 4)
	s.equal(c, hit, []float64{1, 1, 1, 1, 0})
}

func (s *suite) meanses() {
	for _, rows := range []int{1, 2, 31, 32, 33, 64, 1000, 4097, 60_000} {
		for _, batch := range []int{1, 7, 32, 64, 100, 1000, 100_000} {
			if !s.slow() || rows/batch <= 1000 {
				s.means(rows, batch)
			}
		}
	}
}

func (s *suite) means(rows, batch int) {
	loss, hit := s.floats(rows), padded(make([]float32, rows))
	for i := range rows {
		hit[i] = float32(s.r.IntN(2))
	}
	n := (rows + batch - 1) / batch
	out, want, hits := output(2*n), make([]float64, n), make([]float64, n)
	squares := 0.
	for i := range rows {
		in := min(batch, rows-i/batch*batch)
		want[i/batch] += float64(loss[i]) / float64(in)
		hits[i/batch] += float64(hit[i])
		squares += float64(loss[i]) * float64(loss[i]) / float64(in)
	}
	c := Call{Op: "Means", Arrays: []any{out, loss, hit}, Sizes: []int{rows, batch}, Unaligned: s.r.IntN(2) == 0}
	s.do(c, 1)
	var gotLoss, gotHits []float32
	for i := range n {
		gotLoss, gotHits = append(gotLoss, out[2*i]), append(gotHits, out[2*i+1])
	}
	s.near(c, gotLoss, want, Tolerance, math.Sqrt(squares))
	s.equal(c, gotHits, hits)
}

// ties checks that the first of equal values is the prediction, and what labels
// out of range give.
func (s *suite) ties() {
	const rows, cols = 6, 40
	x := padded(make([]float32, rows*cols))
	x[2*cols+7], x[2*cols+39] = 1, 1
	x[3*cols+39] = 1
	labels := append([]int32{0, 1, 7, 39, -1, cols}, make([]int32, guard)...)
	loss, hit := output(rows), output(rows)
	c := Call{Op: "CrossEntropy", Arrays: []any{loss, hit, x, labels}, Sizes: []int{rows, cols}}
	s.do(c, 2)
	s.equal(c, hit, []float64{1, 0, 1, 1, 0, 0})
	if loss[4] == loss[4] || loss[5] == loss[5] {
		s.fail(c, "a label out of range gave the loss %v", loss[4:6])
	}
}

func (s *suite) gathers() {
	for _, rows := range sizes {
		for _, cols := range sizes {
			if rows*cols <= 1<<17 {
				s.gather(rows, cols)
			}
		}
	}
}

func (s *suite) gather(rows, cols int) {
	images, labels := s.images(cols, false), make([]uint8, tableRows+guard)
	for i := range labels {
		labels[i] = uint8(s.r.IntN(10))
	}
	order := s.labels(rows, tableRows)
	x, y := output(rows*cols), make([]int32, rows+guard)
	c := Call{Op: "Gather", Arrays: []any{x, y, images, labels, order}, Sizes: []int{rows, cols}, Unaligned: s.r.IntN(3) == 0}
	s.do(c, 2)
	want := make([]float64, rows*cols)
	for i := range rows {
		for j := range cols {
			want[i*cols+j] = float64(float32(images[int(order[i])*cols+j]) / 255)
		}
		if y[i] != int32(labels[order[i]]) {
			s.fail(c, "label %d is %d", i, y[i])
		}
	}
	s.equal(c, x, want)
}

// empty checks that what has no elements is no error, that products of nothing
// are 0, and that nothing is written otherwise.
func (s *suite) empty() {
	for _, p := range products {
		for _, z := range [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {0, 0, 0}} {
			f := s.factors(p, z[0], z[1], z[2], true)
			c := Call{Op: "MatMul", Products: []kernels.Product{f.p}}
			c.Arrays = append([]any{f.out}, f.in...)
			s.do(c, 1)
			s.equal(c, f.out, f.want)
		}
	}
	f, none := func() []float32 { return output(0) }, s.labels(0, 1)
	for _, c := range []Call{
		{Op: "ReLU", Arrays: []any{f(), f()}, Sizes: []int{0}},
		{Op: "ReLUBackward", Arrays: []any{f(), f(), f()}, Sizes: []int{0}},
		{Op: "Axpy", Arrays: []any{f(), f()}, Sizes: []int{0}},
		{Op: "Softmax", Arrays: []any{f(), f()}, Sizes: []int{0, 10}},
		{Op: "CrossEntropy", Arrays: []any{f(), f(), f(), none}, Sizes: []int{0, 10}},
		{Op: "SoftmaxCrossEntropyBackward", Arrays: []any{f(), f(), none}, Sizes: []int{0, 10}},
		{Op: "Head", Arrays: []any{f(), f(), f(), f(), f(), s.floats(50), []uint8{1}, none}, Sizes: []int{0, 10, 5}},
		{Op: "Means", Arrays: []any{f(), f(), f()}, Sizes: []int{0, 10}},
		{Op: "Gather", Arrays: []any{f(), none, []uint8{1}, []uint8{1}, none}, Sizes: []int{0, 10}},
	} {
		s.do(c, 1)
	}
}
