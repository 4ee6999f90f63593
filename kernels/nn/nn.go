// Package nn names the parts of a network that a training chooses: the activation of its
// hidden layers, and the rule by which a step changes the weights. Package model passes them
// on, package kernels has code for each. To add one, add its value and its row here, its
// functions in kernels/cuda/nn and kernels/ref, and its case in kernels/kerneltest.
package nn

// An Activation is the function that a hidden layer applies to each element of its product.
type Activation uint8

// ReLU is max(0, x).
const ReLU Activation = 0

// activations describes each activation. The tables in kernels/cuda/nn and kernels/ref have the
// same order.
var activations = []struct {
	name string
	// fused activations are computed by GEMMs and the classifier, with their gradient, which must
	// be a function of the output alone. Others are separate kernels, whose gradient reads the
	// input.
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

// An Update is a rule with its parameters. Package kernels passes it to C by its memory layout.
type Update struct {
	Rule Rule
	Rate float32
	Keep float32 // the share of its state that a stateful rule keeps in a step
}
