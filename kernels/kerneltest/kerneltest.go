// Package kerneltest is one suite for every implementation of the operations on
// arrays: the kernels and their reference in Go. It compares them with float64.
package kerneltest

import (
	"sync"
	"testing"
)

// Run runs the suite on the result of newImpl, whose GEMMs have a tolerance. See Seed.
func Run(t *testing.T, newImpl func(testing.TB) Impl, tolerance float64) {
	RunGEMM(t, newImpl, tolerance)
	runParts(t, newImpl, tolerance, map[string]func(*suite){
		"Elementwise": (*suite).elementwise, "Softmax": (*suite).softmaxes, "Classifier": (*suite).classifiers,
		"ReduceLoss": (*suite).reduceLosses, "Gather": (*suite).gathers, "Empty": (*suite).empty,
	})
	t.Run("Concurrent", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range uint64(6) {
			s := newSuite(t, newImpl(t), seed(t)+i, tolerance)
			rounds := 10
			if s.slow() {
				rounds = 3
			}
			all.Go(func() {
				defer s.close()
				for range rounds {
					s.gemm(gemms[s.r.IntN(len(gemms))], 65, 100, 333)
					s.group([3]int{65, 100, 33}, [3]int{70, 40, 50})
					s.classifier(64, 10, 100)
					s.reduceLoss(1000, 64)
					s.elements(1000)
				}
			})
		}
		all.Wait()
	})
}

// RunGEMM runs the part of the suite that is on GEMMs: the sizes that training meets
// in test Large, some for a checker that is slow in test Few.
func RunGEMM(t *testing.T, newImpl func(testing.TB) Impl, tolerance float64) {
	runParts(t, newImpl, tolerance, map[string]func(*suite){
		"GEMMLarge": (*suite).largeGEMMs, "GEMMSmall": (*suite).smallGEMMs, "GEMMFew": (*suite).fewGEMMs,
		"GEMMGroups": (*suite).groups, "GEMMDgradWgrad": (*suite).dgradWgrads, "GEMMTransposed": (*suite).transposes,
		"GEMMOrder": (*suite).orders, "GEMMEmpty": (*suite).emptyGEMMs,
	})
}

func runParts(t *testing.T, newImpl func(testing.TB) Impl, tolerance float64, parts map[string]func(*suite)) {
	for name, part := range parts {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t, newImpl(t), seed(t), tolerance)
			defer s.close()
			part(s)
		})
	}
}

// empty checks that operations on no elements return no error and write nothing.
func (s *suite) empty() {
	f, v, none := func() []float32 { return output(0) }, func() any { return s.outputValues(0) }, s.labels(0, 1)
	for _, c := range []Call{
		{op: activateOp(0), arrays: arrays{v(), f()}},
		{op: activateBackwardOp(0), arrays: arrays{v(), f(), v()}},
		{op: roundOp(0), arrays: arrays{v(), f()}},
		{op: stepOp(1, 0), arrays: arrays{f(), f()}},
		{op: softmaxOp(0, 10), arrays: arrays{f(), f()}},
		{op: crossEntropyOp(0, 10), arrays: arrays{f(), f(), f(), none}},
		{op: softmaxCrossEntropyBackwardOp(0, 10), arrays: arrays{v(), f(), none}},
		{op: classifierOp(0, 10, 5, 0), arrays: arrays{v(), v(), f(), f(), v(), s.values(s.floats(50)), []uint8{1}, none}},
		{op: reduceLossOp(0, 10), arrays: arrays{f(), f(), f()}},
		{op: gatherOp(0, 10), arrays: arrays{v(), none, []uint8{1}, []uint8{1}, none}},
	} {
		s.do(c, 1)
	}
}
