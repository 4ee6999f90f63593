package observe

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// at is a frame.
func at(name, file string, line int) pairs {
	return pairs{"filename", file, "line", line, "name", name}
}

// with is an entry with frames in place of those of entryOf.
func with(e pairs, frames ...any) pairs {
	e = slices.Clone(e)
	e[slices.Index(e, any("frames"))+1] = seq(frames)
	return e
}

// TestTags condenses stacks. The first frame is the innermost one.
func TestTags(t *testing.T) {
	unwind, empty := at("torch::unwind::unwind()", "??", 0), at("at::empty_cuda(long)", "EmptyTensor.cpp", 60)
	linear := at("forward", "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125)
	mine, outer := at("forward", "/home/me/model.py", 12), at("<module>", "train.py", 90)
	for _, c := range []struct {
		name   string
		frames []any
		want   string
	}{
		{"no stack", nil, ""},
		{"the user's code in PyTorch's", []any{unwind, empty, linear, mine, outer}, "forward model.py:12"},
		{"PyTorch's only", []any{linear}, "forward linear.py:125"},
		{"C++ only", []any{at("", "", 0), at("??", "??", 0), empty, unwind}, "at::empty_cuda(long) EmptyTensor.cpp:60"},
		{"the recorder's only", []any{unwind, at("clone", "", 0)}, ""},
		{"nothing named", []any{at("", "", 0), at("??", "??", 0)}, ""},
		{"in the source of PyTorch", []any{at("f", "torch/nn/f.py", 1), outer}, "<module> train.py:90"},
		{"not PyTorch", []any{at("f", "/site-packages/torchvision/f.py", 1), outer}, "f f.py:1"},
		{"Windows", []any{at("f", `C:\lib\torch\f.py`, 1), at("g", `C:\my\g.py`, 2)}, "g g.py:2"},
		{"typed in", []any{at("f", "<stdin>", 1)}, "f <stdin>:1"},
		{"frozen", []any{at("run", "<frozen runpy>", 1), outer}, "<module> train.py:90"},
		{"words", []any{at("alloc", "stream.py", 1)}, "alloc stream.py:1"},
		{"several lines", []any{at("a\nb", "c\td.py", 1)}, "a b c d.py:1"},
		{"a tag", []any{at("conv 2: \u2028weights", "tag", 0)}, "conv 2:  weights"},
		{"an empty tag", []any{at("", "tag", 0)}, ""},
		{"a tag of question marks", []any{at("??", "tag", 0)}, "??"},
		{"a name that is too long", []any{at(strings.Repeat("f", longestText+1), "f.py", 1), outer}, "<module> train.py:90"},
		{"no frame of a call", []any{pairs{"name", 5, "filename", nil}, 7, outer}, "<module> train.py:90"},
		{"of Python's library", []any{at("inner", "/usr/lib/python3.12/contextlib.py", 81), mine}, "forward model.py:12"},
		{"no line", []any{pairs{"name", "f", "filename", "f.py"}}, "f f.py"},
	} {
		for _, protocol := range []int{2, 4} {
			for _, batch := range []int{1, 2, 1000} {
				tr := read(t, dumpIn(protocol, batch, oneDevice(with(alloc(1, 5, 0), c.frames...), with(free(1, 5, 0), at("free", "free.py", 1)))))
				for _, e := range tr.Events {
					if got := tr.Tags[e.Tag]; got != c.want {
						t.Errorf("%s: %q, want %q", c.name, got, c.want)
					}
				}
			}
		}
	}
}

// TestCategories condenses the stacks of PyTorch to a tag and a category. Frames of C++ are those of stacks="all".
func TestCategories(t *testing.T) {
	cpp := func(names ...string) (frames []any) {
		for _, name := range append([]string{"torch::unwind::unwind()", "torch::CapturedTraceback::gather(bool, bool, bool)",
			"c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)", "at::detail::empty_cuda(c10::ArrayRef<long>)"}, names...) {
			frames = append(frames, at(name, "??", 0))
		}
		return frames
	}
	torch := func(name, file string) pairs { return at(name, "/usr/lib/python3/site-packages/torch/"+file, 9) }
	const backward, engine = "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "torch::autograd::Engine::thread_main(bool)"
	main, model := at("<module>", "train.py", 90), at("forward", "model.py", 12)
	for _, c := range []struct {
		frames   []any
		tag      string
		category Category
	}{
		{cpp("at::native::structured_mm_out_cuda::impl(at::Tensor const&)", backward, engine, "clone"), "MmBackward0", Gradients},
		{cpp("at::_ops::empty_like::call(at::Tensor const&)", "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", engine), "AccumulateGrad", Gradients},
		{append(cpp("at::_ops::mm::call()"), model, torch("_call_impl", "nn/modules/module.py"), main, at(backward, "??", 0)), "forward model.py:12", Activations}, // recomputed
		{append(cpp("at::cuda::getNewWorkspace()", "at::cuda::getCurrentCUDABlasHandle()"), torch("forward", "nn/modules/linear.py"), main), "<module> train.py:90", Workspace},
		{cpp("at::native::zeros_like(at::Tensor const&)"), "at::native::zeros_like(at::Tensor const&)", Uncategorized},
		{[]any{torch("_call_impl", "nn/modules/module.py"), main}, "<module> train.py:90", Activations},
		{[]any{at("backward", "ops.py", 3), torch("apply", "autograd/function.py")}, "backward ops.py:3", Gradients},
		{[]any{torch("_init_group", "optim/adam.py"), torch("step", "optim/adam.py"), main}, "<module> train.py:90", OptimizerState},
		{[]any{torch("_multi_tensor_adam", "optim/adam.py"), torch("step", "optim/adam.py"), main}, "<module> train.py:90", Workspace},
		{[]any{torch("__init__", "nn/modules/linear.py"), at("__init__", "model.py", 5), main}, "__init__ model.py:5", Parameters},
		{[]any{torch("convert", "nn/modules/module.py"), torch("_apply", "nn/modules/module.py"), main}, "<module> train.py:90", Parameters},
		{[]any{torch("_process_value_according_to_param_policy", "optim/optimizer.py"), torch("load_state_dict", "optim/optimizer.py"), main}, "<module> train.py:90", OptimizerState},
		{[]any{torch("foreach_all_gather", "distributed/fsdp/_fully_shard/_fsdp_collectives.py"), torch("_call_impl", "nn/modules/module.py"), main}, "<module> train.py:90", Parameters},
		{[]any{at("init_weights", "model.py", 7), main}, "init_weights model.py:7", Parameters},
		{[]any{torch("cross_entropy", "nn/functional.py"), main}, "<module> train.py:90", Activations},
		{nil, "", Gradients}, // of a thread without Python
	} {
		tr := read(t, dump(4, oneDevice(with(alloc(1, 5, 0), main), with(alloc(2, 5, 0), c.frames...))))
		if got := tr.Events[1].Tag; tr.Tags[got] != c.tag || tr.Categories[got] != c.category {
			t.Errorf("%v: %q, %v, want %q, %v", c.frames, tr.Tags[got], tr.Categories[got], c.tag, c.category)
		}
	}
}

// TestTagOfAFree takes the stack of a free only if it is a tag, since it is that of the free's caller.
func TestTagOfAFree(t *testing.T) {
	tr := read(t, dump(2, oneDevice(with(free(1, 5, 0), at("free", "free.py", 1)), with(free(2, 5, 0), at("conv", "tag", 0)))))
	if got := []string{tr.Tags[tr.Events[0].Tag], tr.Tags[tr.Events[1].Tag]}; !slices.Equal(got, []string{"", "conv"}) {
		t.Errorf("tags %q", got)
	}
}

// TestMemos uses frames, and whole stacks, that were pickled before.
func TestMemos(t *testing.T) {
	const frame = "}q\x01(X\x04\x00\x00\x00nameq\x02X\x01\x00\x00\x00fq\x03X\x08\x00\x00\x00filenameq\x04X\x04\x00\x00\x00f.pyq\x05u"
	const late = "}(h\x02X\x01\x00\x00\x00gh\x04h\x05uq\x06" // memoized when it is full, as by C++
	for name, c := range map[string]struct{ first, second, want string }{
		"a frame":                {"](" + frame + "e", "](h\x01e", "f f.py"},
		"a full frame":           {"](" + frame + late + "e", "](h\x06e", "g f.py"},
		"a stack":                {"]q\x07(" + frame + "e", "h\x07", "f f.py"},
		"a full stack":           {"](" + frame + "eq\x07", "h\x07", "f f.py"},
		"an empty list":          {"]q\x07", "h\x07", ""},
		"a frame that is a list": {"](" + frame + "e", "h\x01", ""},
		"a text":                 {"](" + frame + "e", "](h\x03e", ""},
	} {
		text := "\x80\x04}\x8c\x0ddevice_traces](]("
		for i, frames := range []string{c.first, c.second} {
			text += "}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK" + string(rune(i+1)) + "\x8c\x04sizeK\x05\x8c\x06streamK\x00\x8c\x06frames" + frames + "u"
		}
		tr := read(t, text+"ees.")
		if got := tr.Tags[tr.Events[1].Tag]; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestRMMTags(t *testing.T) {
	const text = "Action,Pointer,Size,Stream,Tag\nallocate,0x10,4,0,\"a, b\"\nfree,0x20,4,0,c\nfree,0x10,4,0,other\nallocate,0x10,4,0,\n"
	tr := read(t, text)
	var got []string
	for _, e := range tr.Events {
		got = append(got, tr.Tags[e.Tag])
	}
	if want := []string{"c", "a, b", "c", "a, b", ""}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPools numbers private pools in the order in which entries name them.
func TestPools(t *testing.T) {
	in := func(e pairs, id ...any) pairs {
		e = slices.Clone(e)
		e[slices.Index(e, any("pool_id"))+1] = tuple(id)
		return e
	}
	tr := read(t, dump(4, oneDevice(in(alloc(1, 5, 0), 0, 7), in(alloc(2, 5, 0), 0, 0), in(alloc(3, 5, 0), 1, 0), in(free(1, 5, 0), 0, 7),
		in(alloc(4, 5, 0), 0, 7), in(alloc(5, 5, 0), "no", "id"), in(alloc(6, 5, 0), 1, 2, 3))))
	var got []int32
	for _, e := range tr.Events {
		got = append(got, e.Pool)
	}
	if want := []int32{1, 0, 2, 1, 1, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestStacksAreShared measures the memory that Read takes for many long stacks of the same
// frames, which the file repeats.
func TestStacksAreShared(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector empties the pools of regular expressions")
	}
	var entries, frames seq
	for i := range 1000 {
		frames = append(frames, at(strings.Repeat("f", 300), strings.Repeat("g", 10)+".py", i))
	}
	for i := range 100 {
		entries = append(entries, append(with(alloc(i+1, 8, 0), frames...), "user_metadata", frames))
	}
	text := dump(4, oneDevice(entries...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tr := read(t, text)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; len(tr.Tags) != 2 || got > 2*uint64(len(text)) {
		t.Errorf("%d bytes were allocated for a file of %d, with %d tags", got, len(text), len(tr.Tags))
	}
}
