package kerneltest

import (
	"fmt"

	"mlpool/kernels/ref"
)

// gatherOp is [kernels.Stream.Gather].
func gatherOp(rows, cols int) op {
	return op{
		name: fmt.Sprintf("Gather[%d,%d]", rows, cols),
		launch: func(d cuda, p []uintptr) error {
			return d.s.Gather(d.precision, p[0], p[1], p[2], p[3], p[4], rows, cols)
		},
		early: []int{2, 3, 4},
		ref: func(a arrays) {
			a.write(0, func(x []float32) { ref.Gather(x, a.i32(1), a.u8(2), a.u8(3), a.i32(4), rows, cols) })
		},
	}
}

// tableRows is the number of images of a table.
const tableRows = 50

// images is a table of tableRows images.
func (s *suite) images(cols int) []uint8 {
	images := make([]uint8, tableRows*cols+guard)
	for i := range images {
		images[i] = uint8(s.r.Uint32())
	}
	return images
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
	images, labels := s.images(cols), make([]uint8, tableRows+guard)
	for i := range labels {
		labels[i] = uint8(s.r.IntN(10))
	}
	indices := s.labels(rows, tableRows)
	x, y := s.outputValues(rows*cols), make([]int32, rows+guard)
	c := Call{op: gatherOp(rows, cols), arrays: arrays{x, y, images, labels, indices}, unaligned: s.r.IntN(3) == 0}
	s.do(c, 2)
	want := make([]float64, rows*cols)
	for i := range rows {
		for j := range cols {
			want[i*cols+j] = float64(images[int(indices[i])*cols+j])
		}
		if y[i] != int32(labels[indices[i]]) {
			s.fail(c, "label %d is %d", i, y[i])
		}
	}
	s.equal(c, floatsOf(x), want)
}
