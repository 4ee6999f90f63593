// Package nn names the parts of a network that a training chooses: the activation of its
// hidden layers, and the rule by which a step changes the weights.
//
// # A new activation
//
// Its value at 0 must be 0, since package model pads layers with units whose weights are 0. Its
// derivative gets its output if it is fused, else its input. It needs
//
//   - a constant and a row here;
//   - a struct and a row in kernels/cuda/nn/activation.cu;
//   - two functions and a row in kernels/ref/ref.go;
//   - to be fused, below, if trainings in bf16 may use it;
//   - its formulas in float64, in kernels/kerneltest/elementwise.go and model/oracle_test.go, whose
//     tests fail if they have none;
//   - a key in configs/config.go and its line in configs/README.md;
//   - the copies of the model: torch_comparison.py and peers_jax.py in tools.
//
// A fused one also needs
//
//   - its number in kernels/cuda/kernels.h;
//   - its struct in kernels/cuda/gemm/epilogue.cuh, where Epilogue must choose between activations by
//     a new field of Gemm in gemm.cuh;
//   - that field, set in gemm_of, and its number in check, both in kernels/cuda/gemm/dispatch.cu;
//   - its gradient in kernels/cuda/nn/classifier.cu, and its number in kernels_classifier;
//   - its cases in gemm.go and classifier.go of kernels/kerneltest, which test ReLU alone.
//
// # A new rule
//
// It needs a constant and a row here, a struct and a row in kernels/cuda/nn/elementwise.cu, a function
// and a row in kernels/ref/ref.go, and its formula, key and copies as above. A parameter is a field of
// [Update] and of kernels_update in kernels/cuda/kernels.h. epilogue.cuh says how to fuse a rule.
package nn

// An Activation is the function that a hidden layer applies to each element of its product.
type Activation uint8

// ReLU is max(0, x).
const ReLU Activation = 0

// activations describes each activation. The tables in kernels/cuda/nn and kernels/ref have the
// same order.
var activations = []struct {
	name string
	// A GEMM or the classifier computes a fused activation and its gradient. So the gradient may
	// depend only on the output. Other activations are kernels of their own; their gradient reads
	// the input.
	fused bool
}{
	ReLU: {"relu", true},
}

func (a Activation) String() string { return activations[a].name }

// Fused reports whether GEMMs and the classifier compute a. The gradient through a is then a
// function of its output, else of its input.
func (a Activation) Fused() bool { return activations[a].fused }

// Activations returns all activations.
func Activations() (all []Activation) {
	for a := range activations {
		all = append(all, Activation(a))
	}
	return all
}

// A Rule says how a step changes weights w by their gradient dw.
type Rule int32

// SGD is w -= Rate·dw.
const SGD Rule = 0

// rules describes each rule, in the order of the tables in kernels/cuda/nn and kernels/ref.
var rules = []struct {
	name string
	// fused rules are applied by the GEMM that computes dw.
	fused bool
	// stateful rules keep a tensor of the weights' shape from step to step, at first zero.
	stateful bool
}{
	SGD: {"sgd", true, false},
}

func (r Rule) String() string { return rules[r].name }

// Fused reports whether the GEMM of a weight gradient applies the rule. Only such rules work with
// several ranks.
func (r Rule) Fused() bool { return rules[r].fused }

// Stateful reports whether the rule keeps a tensor of the weights' shape, at first zero.
func (r Rule) Stateful() bool { return rules[r].stateful }

// Rules returns all rules.
func Rules() (all []Rule) {
	for r := range rules {
		all = append(all, Rule(r))
	}
	return all
}

// An Update is a rule with its parameters. Package kernels passes it to C by its memory layout.
type Update struct {
	Rule Rule
	Rate float32
	Keep float32 // the share of its state that a stateful rule keeps in a step
}
