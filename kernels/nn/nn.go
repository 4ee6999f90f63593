// Package nn names the parts of a network that a training chooses: the activation of its
// hidden layers, and the rule by which a step changes the weights. Package model passes them
// on, package kernels has code for each. To add one, add its value and its row here, its
// functions in kernels/cuda/nn and kernels/ref, and its case in kernels/kerneltest.
package nn

// An Activation is the function that a hidden layer applies to each element of its product.
type Activation uint8

// ReLU is max(0, x).
const ReLU Activation = 0

// activations are the rows of the activations, by their numbers, which kernels.h has as well.
var activations = []struct {
	name string
	// fused says whether GEMMs and the classifier compute it and its gradient, which then is a
	// function of the output alone. Others are kernels of their own, whose gradient reads the
	// input.
	fused bool
}{
	ReLU: {"relu", true},
}

func (a Activation) String() string { return activations[a].name }

// Fused says whether there are GEMMs and a classifier that compute a. The gradient through a is
// then a function of its output; else it is one of its input.
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

// rules are the rows of the rules, by their numbers, which kernels.h has as well.
var rules = []struct {
	name string
	// fused says whether the GEMM that computes dw updates w.
	fused bool
	// stateful says whether the rule keeps a tensor of the weights' shape from step to step,
	// of zeros at first.
	stateful bool
}{
	SGD: {"sgd", true, false},
}

func (r Rule) String() string { return rules[r].name }

// Fused says whether the GEMM of a weight gradient can apply the rule. Several ranks need that, too.
func (r Rule) Fused() bool { return rules[r].fused }

// Stateful says whether the rule keeps a tensor of the weights' shape, of zeros at first.
func (r Rule) Stateful() bool { return rules[r].stateful }

// An Update is a rule with its parameters. Package kernels passes it to C as it lies in memory.
type Update struct {
	Rule Rule
	Rate float32
}
