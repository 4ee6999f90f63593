package observe

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Category is what a block is for, as its stack tells.
type Category uint8

// The categories. Uncategorized is that of a block without a stack, or with one that does not tell.
const (
	Uncategorized Category = iota
	Parameters
	Gradients // what backward allocates, also for gradients of activations
	OptimizerState
	Activations
	Workspace // of a library or of an optimizer's step
	categories
)

// String names the category.
func (c Category) String() string {
	return [categories]string{"other", "parameters", "gradients", "optimizer state", "activations", "workspace"}[c]
}

// A condensed stack is the frame that stands for the stack, and its category, which is that of the innermost frame
// that has one.
type condensed struct {
	frame    int32
	category Category
}

// A look is what a frame tells of its stack.
type look struct {
	rank
	category Category
}

// A rank says how well a frame stands for its stack.
type rank uint8

const (
	unnamed  rank = iota // no name, or one of what every stack has: the recorder, the interpreter, a thread's start
	plumbing             // of allocators and of what calls them for any operation
	named
	node // of autograd's graph
	user // Python code that is neither PyTorch's nor of Python's own library
)

// Parts of names of C and C++. Those of everywhere are in any stack; those of serving are of allocators, and of what
// calls them for any operation.
var (
	everywhere = []string{"??", "unwind::", "CapturedTraceback", "gather_with_cpp", "libc_start", "start_thread", "native_thread_routine",
		"default_error_condition", "_vectorcall", "cfunction_", "slot_tp_", "type_call", "pymain"}
	serving = []string{"llocator", "llocate(", "malloc(", "Malloc(", "::empty", "::_empty", "_empty", "TensorImpl", "StorageImpl", "set_output", "create_out", "resize_",
		"c10::impl", "c10::Dispatcher", "c10::detail", "at::_ops", "wrapper_", "VariableType", "autograd::Engine", "autograd::Node", "autograd::python", "rmm::"}
	working  = []string{"orkspace", "CUDABlasHandle", "CublasHandle", "run_conv_plan", "cub::", "thrust::"}
	root     = regexp.MustCompile(`^(_start|clone3?|_?Py[A-Z_].*)$`) // of a thread, or in the interpreter
	nodeName = regexp.MustCompile(`^torch::autograd::(?:\w+::)*([\w<>:]+)::apply(?:\(|$)`)
	standard = regexp.MustCompile(`/lib/python3[.\d]*/[^/]+\.py$`) // such as contextlib.py
)

// scriptCategory are the categories of frames of Python, of which the first that matches counts. A pattern is of the
// name, a space and the file.
var scriptCategory = []struct {
	Category
	frame *regexp.Regexp
}{
	{Gradients, regexp.MustCompile(`^_?(backward|make_grads|engine_run_backward|backward_impl|foreach_reduce|post_backward\w*) |/nn/parallel/distributed\.py`)},
	{OptimizerState, regexp.MustCompile(`^_?(init_group|init_state|lazy_init_state|load_state_dict|process_value\w*|cast) .*(?i)/optim`)},
	{Workspace, regexp.MustCompile(`/torch/optim/|^step .*(?i)optim`)},
	{Parameters, regexp.MustCompile(`^(_apply|to_empty|load_state_dict|_load_from_state_dict|from_pretrained|reset_parameters|foreach_all_gather|_?unshard|(_?init_)?(params?|parameters|weights)) |^__init__ .*/torch/nn/|/torch/nn/(init|parameter)\.py|/safetensors/|/fsdp/_flat_param\.py`)},
	{Activations, regexp.MustCompile(`^(forward|_call_impl) |/torch/nn/functional\.py`)},
}

// hasAny reports whether name has one of the parts.
func hasAny(name string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
}

// frame returns the number of a frame.
func (n *names) frame(f frame) int32 {
	number := n.frames.number(f)
	if int(number) == len(n.looks) {
		n.looks = append(n.looks, n.lookAt(f))
	}
	return number
}

// stack returns the number of a stack whose inner frames are those of stack inner, and whose next is frame outer. In
// PyTorch the innermost frame is the first. The frame that stands for a stack is the innermost of the highest rank.
func (n *names) stack(inner, outer int64) int64 {
	s, next := n.stacks.values[inner], n.looks[outer]
	better := next.rank > n.looks[s.frame].rank
	if better {
		s.frame = int32(outer)
	}
	if better || s.category == Uncategorized && next.category != Uncategorized {
		s.category = cmp.Or(s.category, next.category)
		return int64(n.stacks.number(s))
	}
	return inner
}

// lookAt says what a frame tells.
func (n *names) lookAt(f frame) look {
	name, file := n.texts.values[f.name], n.texts.values[f.file]
	file = "/" + strings.ReplaceAll(file, `\`, "/")
	typed := strings.HasPrefix(file, "/<") && strings.HasSuffix(file, ">") // such as <stdin>
	script := strings.HasSuffix(file, ".py") || typed && !strings.HasPrefix(file, "/<frozen ")
	l := look{rank: named}
	switch {
	case n.own(f):
	case script:
		for _, c := range slices.Backward(scriptCategory) {
			if c.frame.MatchString(name + " " + file) {
				l.category = c.Category
			}
		}
		if !strings.Contains(file, "/torch/") && !strings.Contains(file, "??") && !standard.MatchString(file) {
			l.rank, n.python = user, true
		}
	case nodeName.MatchString(name):
		return look{node, Gradients}
	case name == "" || root.MatchString(name) || hasAny(name, everywhere):
		l.rank = unnamed
	case hasAny(name, working):
		l.category = Workspace
	case strings.Contains(name, "c10d::Reducer"):
		l.category = Gradients
	case hasAny(name, serving):
		l.rank = plumbing
	}
	return l
}

// own reports whether f is the frame of a tag, which WriteSnapshot writes.
func (n *names) own(f frame) bool {
	return f.line == 0 && n.texts.values[f.file] == ownFile
}

// describe describes a frame, which stands for a stack, in one line.
func (n *names) describe(number int32) string {
	f := n.frames.values[number]
	name, file := n.texts.values[f.name], n.texts.values[f.file]
	switch {
	case n.looks[number].rank == unnamed:
		return ""
	case n.looks[number].rank == node:
		return nodeName.FindStringSubmatch(name)[1]
	case n.own(f) || file == "" || strings.Contains(file, "??"):
		return name
	}
	file = file[strings.LastIndexAny(file, `/\`)+1:]
	if f.line > 0 {
		file = fmt.Sprintf("%s:%d", file, f.line)
	}
	return strings.TrimSpace(name + " " + file)
}
