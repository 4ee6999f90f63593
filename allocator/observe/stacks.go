package observe

import (
	"cmp"
	"fmt"
	"regexp"
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

var (
	everywhere = regexp.MustCompile(`\?\?|unwind::|CapturedTraceback|gather_with_cpp|^_start$|^__libc_start|^clone3?$|start_thread|native_thread_routine|default_error_condition|^_?Py[A-Z_]|_vectorcall|^cfunction_|^slot_tp_|^type_call|^pymain`)
	serving    = regexp.MustCompile(`[Aa]llocat(or|e\()|[Mm]alloc\b|\b_?empty|TensorImpl|StorageImpl|set_output|create_out|resize_|^c10::(impl|Dispatcher|detail)|^at::_ops|wrapper_|VariableType|autograd::(Engine|Node|python)|^rmm::`)
	standard   = regexp.MustCompile(`/lib/python3[.\d]*/[^/]+\.py$`) // such as contextlib.py
	nodeName   = regexp.MustCompile(`^torch::autograd::(?:\w+::)*([\w<>:]+)::apply(?:\(|$)`)
)

// categoryOf are the categories of frames, of which the first that matches counts. A pattern is of the name, a space
// and the file.
var categoryOf = []struct {
	Category
	frame *regexp.Regexp
}{
	{Workspace, regexp.MustCompile(`(?i)workspace|CUDABlasHandle|CublasHandle|run_conv_plan|cub::|thrust::`)},
	{Gradients, regexp.MustCompile(`^torch::autograd::.*::apply(\(|$)|c10d::Reducer|^_?(backward|make_grads|engine_run_backward|backward_impl|foreach_reduce|post_backward\w*)\b|/nn/parallel/distributed\.py`)},
	{OptimizerState, regexp.MustCompile(`^_?(init_group|init_state|lazy_init_state|load_state_dict|process_value\w*|cast) .*(?i)/optim`)},
	{Workspace, regexp.MustCompile(` .*/torch/optim/|^step .*(?i)optim`)},
	{Parameters, regexp.MustCompile(`^(_apply|to_empty|load_state_dict|_load_from_state_dict|from_pretrained|reset_parameters|foreach_all_gather|_?unshard|(_?init_)?(params?|parameters|weights)) |^__init__ .*/torch/nn/| .*/torch/nn/(init|parameter)\.py| .*/safetensors/|/fsdp/_flat_param\.py`)},
	{Activations, regexp.MustCompile(`^(forward|_call_impl) |/torch/nn/functional\.py`)},
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
	if n.own(f) {
		return look{named, Uncategorized}
	}
	l := look{named, Uncategorized}
	for _, c := range categoryOf {
		if c.frame.MatchString(name + " " + file) {
			l.category = c.Category
			break
		}
	}
	switch {
	case script && !strings.Contains(file, "/torch/") && !strings.Contains(file, "??") && !standard.MatchString(file):
		l.rank, n.python = user, true
	case name == "" || everywhere.MatchString(name):
		l.rank = unnamed
	case nodeName.MatchString(name):
		l.rank = node
	case !script && serving.MatchString(name):
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
