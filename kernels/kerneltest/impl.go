package kerneltest

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// A Call is one operation on host arrays.
type Call struct {
	op
	arrays
	unaligned bool // place the arrays on odd multiples of 4 bytes
	nothing   bool // nothing is computed: no kernel is launched
}

// An op is an operation, with its sizes.
type op struct {
	name string
	// launch queues it on a stream, on the arrays at these addresses.
	launch func(d cuda, p []uintptr) error
	// early returns the arrays that launch may read before the kernel queued ahead of it is done.
	early []int
	// ref does it with package ref.
	ref func(a arrays)
	// clear, if not nil, clears what it leaves undefined.
	clear func(a arrays)
}

// arrays are []float32, []ref.BF16, []int32 or []uint8 in the order of the operation's arguments,
// longer than its sizes say; nil is the address 0.
type arrays []any

// f32 returns an array of floats: a copy of one of bf16.
func (a arrays) f32(i int) []float32 { return floatsOf(a[i]) }

// write lets f write an array of floats, and rounds what it wrote if the array is of bf16.
func (a arrays) write(i int, f func(x []float32)) {
	x := a.f32(i)
	f(x)
	if to, ok := a[i].([]ref.BF16); ok {
		ref.Round(to, x, len(x))
	}
}

func (a arrays) i32(i int) []int32 { return a[i].([]int32) }
func (a arrays) u8(i int) []uint8  { return a[i].([]uint8) }

// An Impl runs operations. It is used by one goroutine.
type Impl interface {
	// Do runs a call and leaves the arrays as it left them.
	Do(Call) error
	values() kernels.Precision // which says of what type values are
	Close() error
}

// Reference returns a function that makes an Impl of package ref, whose values are those of a precision.
func Reference(p kernels.Precision) func(testing.TB) Impl {
	return func(testing.TB) Impl { return host{p} }
}

type host struct{ precision kernels.Precision }

func (host) Close() error { return nil }

func (h host) values() kernels.Precision { return h.precision }
func (d cuda) values() kernels.Precision { return d.precision }

func (host) Do(c Call) error {
	c.ref(c.arrays)
	return nil
}

// RequireGPU skips the test if no CUDA device can be used, or fails it if the environment has
// REQUIRE_GPU=1.
func RequireGPU(t testing.TB) {
	t.Helper()
	if err := kernels.Available(); err != nil {
		if os.Getenv("REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Emulated reports whether the GPU is kernels/emulator: slow, in the memory of this process, and done
// with all work before the host continues.
func Emulated() bool {
	d, err := kernels.Device()
	return err == nil && d.Name == "emulated GPU"
}

// RequireRealGPU is RequireGPU for a test that does not work with an emulated GPU.
func RequireRealGPU(t testing.TB) {
	t.Helper()
	RequireGPU(t)
	if Emulated() {
		t.Skip("needs a real GPU")
	}
}

// CUDA returns a function that makes an Impl: a stream with device memory, whose GEMMs have the given
// precision.
func CUDA(p kernels.Precision) func(testing.TB) Impl {
	return func(t testing.TB) Impl {
		RequireGPU(t)
		if err := p.Usable(); err != nil {
			t.Skip(err)
		}
		s, err := kernels.NewStream()
		area, err2 := cudadriver.Driver{}.Malloc(2 * areaBytes)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return cuda{s, p, area}
	}
}

const areaBytes = 256 << 20

// A cuda has two areas of device memory: one for the arrays of a call, and one from which they are
// moved there.
type cuda struct {
	s         kernels.Stream
	precision kernels.Precision
	area      uintptr
}

func (d cuda) Close() error { return errors.Join(d.s.Close(), cudadriver.Driver{}.Free(d.area)) }

// Do queues the operation between two kernels. The first moves all arrays into place that the
// operation may not read early. The second reads some of them before its own griddepcontrol.wait,
// which is correct only if the operation waited before it let that kernel start.
func (d cuda) Do(c Call) error {
	const mark, poison = 0xa5, 0xff
	p, next := make([]uintptr, len(c.arrays)), d.area
	place := func(early bool) {
		for i, x := range c.arrays {
			if x == nil || slices.Contains(c.early, i) != early {
				continue
			}
			p[i] = next
			if c.unaligned {
				p[i] += 4
			}
			next += uintptr(len(bytesOf(x))+256+255) &^ 255 // with a gap
		}
	}
	marked := make([]byte, 256)
	place(true)
	moved := next
	next += uintptr(len(marked))
	place(false)
	seen := next
	if next += uintptr(len(marked)); next > d.area+areaBytes {
		return errors.New("the arrays do not fit the test's memory")
	}

	err := errors.Join(d.s.Fill(moved, poison, int(next-moved)), d.s.Fill(moved+areaBytes, mark, len(marked)))
	for i, x := range c.arrays {
		to := p[i]
		if to > moved {
			to += areaBytes
		}
		err = errors.Join(err, d.s.Upload(to, bytesOf(x)))
	}
	if err != nil {
		return err
	}
	err = errors.Join(
		d.s.Move(moved, moved+areaBytes, int64(seen-moved), false),
		c.launch(d, p),
		d.s.Move(seen, moved, int64(len(marked)), true),
		d.s.Download(marked, seen),
	)
	if !c.nothing && slices.ContainsFunc(marked, func(b byte) bool { return b != mark }) {
		err = errors.Join(err, errors.New("let the next kernel start before the one before it was done"))
	}
	for i, x := range c.arrays {
		err = errors.Join(err, d.s.Download(bytesOf(x), p[i]))
	}
	return err
}

// bytesOf returns the memory of an array, or nil for nil.
func bytesOf(x any) []byte {
	if x == nil {
		return nil
	}
	v := reflect.ValueOf(x)
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Len()*int(v.Type().Elem().Size()))
}
