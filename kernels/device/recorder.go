package device

import (
	"fmt"
	"strings"

	"mlpool/kernels"
)

// A Launch describes one operation of a queue.
type Launch struct {
	Name, Shape string
	FLOPs       float64 // 0 for operations that bytes limit
	Bytes       float64 // of its operands and results, each counted once
	// Arrays are those that it writes, then those that it reads. Each GEMM has C, A, B, Y, T, Indices and
	// Rounded, in this order.
	Arrays   []uintptr
	Wrote    []uintptr
	Args     []any          // its other arguments; of a GEMM M, N and K
	GEMMs    []kernels.GEMM // where it is of GEMMs
	Prefetch kernels.Prefetch
}

// Observe returns a queue that passes each launch to around, with the function that queues it on
// q. Calls that launch nothing go to q directly.
func Observe(q Queue, around func(l Launch, queue func() error) error) Queue {
	return &recorder{q, around}
}

// recorder is what Observe returns.
type recorder struct {
	Queue
	around func(l Launch, queue func() error) error
}

// Names of launches, of their outputs, and of operations in errors.
const (
	opClassifier     = "classifier"
	opBackward       = "backward"
	nameHidden       = "gemm+relu"
	nameDgrad        = "dgrad"
	nameFusedDgrad   = "dgrad+drelu"
	nameWgrad        = "wgrad+sgd"
	nameUnfusedWgrad = "wgrad"
	nameTranspose    = "transpose"
	nameDgradWgrad   = "dgrad+wgrad+sgd"
)

// gemmName returns the name of g in profiles.
func gemmName(g kernels.GEMM) string {
	names := [...][4]string{
		kernels.NN: {"gemm", nameHidden},
		kernels.NT: {nameDgrad, "", nameFusedDgrad},
		kernels.TN: {nameUnfusedWgrad, "", "", nameWgrad},
	}
	return names[g.Layout][g.Epilogue]
}

// ofGEMM describes g on a queue of values of this kind.
func ofGEMM(g kernels.GEMM, values Kind) Launch {
	l := Launch{Name: gemmName(g), Shape: fmt.Sprintf("[%d,%d]·[%d,%d]", g.M, g.K, g.K, g.N), Args: []any{g.M, g.N, g.K}}
	l.GEMMs, l.Arrays, l.Wrote = []kernels.GEMM{g}, []uintptr{g.C, g.A, g.B, g.Y, g.T, g.Indices, g.Rounded}, []uintptr{g.C}
	m, n, k := float64(g.M), float64(g.N), float64(g.K)
	l.FLOPs = 2 * m * n * k
	value := float64(values.Size())
	a := value
	if g.Indices != 0 {
		l.Name = "gather+" + l.Name
		a = 1
	}
	c := map[kernels.Epilogue]float64{ // with the one more operand that some have
		kernels.None: 4, kernels.Activate: value, kernels.ActivateBackward: 2 * value, kernels.SGD: 2 * 4,
	}[g.Epilogue]
	if g.Layout == kernels.NT && g.T != 0 {
		c += value
		l.Wrote = append(l.Wrote, g.T)
	}
	if g.Rounded != 0 {
		c += value
		l.Wrote = append(l.Wrote, g.Rounded)
	}
	l.Bytes = a*m*k + value*k*n + c*m*n
	return l
}

func ofGroupedGEMM(group []kernels.GEMM, values Kind) Launch {
	all := Launch{Name: nameWgrad}
	if len(group) > 0 {
		all.Name = gemmName(group[0])
	}
	var shapes []string
	alike := 0
	for i, g := range group {
		l := ofGEMM(g, values)
		if i > 0 && g.A == group[i-1].C { // of a chain: it was counted, and is not read
			l.Bytes -= float64(values.Size()) * float64(g.M) * float64(g.K)
		}
		all.FLOPs, all.Bytes = all.FLOPs+l.FLOPs, all.Bytes+l.Bytes
		all.GEMMs, all.Arrays, all.Wrote = append(all.GEMMs, g), append(all.Arrays, l.Arrays...), append(all.Wrote, l.Wrote...)
		if alike++; i+1 < len(group) && ofGEMM(group[i+1], values).Shape == l.Shape {
			continue
		}
		if alike > 1 {
			l.Shape = fmt.Sprintf("%d×%s", alike, l.Shape)
		}
		shapes, alike = append(shapes, l.Shape), 0
	}
	all.Shape = strings.Join(shapes, ", ")
	return all
}

func ofDgradWgrad(g kernels.GEMM, values Kind) Launch {
	dgrad, wgrad := g.Parts()
	l, update := ofGEMM(dgrad, values), ofGEMM(wgrad, values)
	l.Name, l.GEMMs, l.FLOPs = nameDgradWgrad, []kernels.GEMM{g}, l.FLOPs+update.FLOPs
	// Both parts read a, y and the weights, which count once.
	m, n, k := float64(g.M), float64(g.N), float64(g.K)
	l.Bytes += update.Bytes - float64(values.Size())*(m*k+m*n+n*k)
	l.Arrays[2], l.Arrays[6] = g.B, g.Rounded
	l.Wrote = append(l.Wrote, update.Wrote...)
	return l
}

func ofClassifier(c kernels.Classifier, values Kind) Launch {
	l := ofGEMM(kernels.GEMM{M: c.Rows, N: c.Classes, K: c.K}, values)
	l.Name, l.GEMMs, l.Prefetch = opClassifier, nil, c.Prefetch
	if c.DLogits != 0 {
		l.Name = "classifier+gradients"
		l.FLOPs *= 2
		l.Bytes += float64(values.Size()) * float64(c.Rows) * float64(c.K)
	}
	l.Wrote = []uintptr{c.DLogits, c.DX, c.Loss, c.Correct}
	l.Arrays = append(l.Wrote, c.X, c.W, c.Labels, c.Indices)
	return l
}

// An array is one that an operation writes or reads.
type array struct {
	addr  uintptr
	bytes int // moved for each element of the operation
	wrote bool
}

// pass is a launch on rows·cols elements. An array at address 0 is not counted.
func pass(name string, rows, cols int, arrays []array, args ...any) Launch {
	l := Launch{Name: name, Shape: fmt.Sprintf("[%d,%d]", rows, cols), Args: args}
	bytes := 0
	for _, a := range arrays {
		l.Arrays = append(l.Arrays, a.addr)
		if a.addr == 0 {
			continue
		}
		bytes += a.bytes
		if a.wrote {
			l.Wrote = append(l.Wrote, a.addr)
		}
	}
	l.Bytes = float64(rows) * float64(cols) * float64(bytes)
	return l
}
