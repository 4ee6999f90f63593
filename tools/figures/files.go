package main

import (
	"os"
	"path/filepath"
	"strings"

	"mlpool/internal/plotstyle"
)

// fileTable lists the files in assets. The notes of a file name the day and the GPU.
func fileTable(s *source) string {
	rows := [][]string{{"file", "contents", "made by", "on"}}
	for _, f := range []struct{ name, contents, command string }{
		{training, "epochs on each allocator", "tools/trainings.sh"},
		{peersFile, "epochs of mlpool, JAX and PyTorch", "tools/peers.py"},
		{sweepFile, "epochs of random shapes, and of shapes on both sides of bounds in the code", "tools/peers.py"},
		{"sweep_other_h200.csv", "epochs of ninety-six other random shapes, beside JAX", "tools/peers.py"},
		{"sweep_near_jax_h200.csv", "the shapes within 15 % of JAX, three times", "tools/peers.py"},
		{"gemms_h200.csv", "GEMMs of a hidden layer, and those of cuBLASLt", "tools/gemms.py"},
		{"timeline_h200.csv", "the kernels of a training step, one by one, and the clock in training", "ncu"},
		{torchFile, "PyTorch's jobs on the pool and on other allocators", "tools/torch_memory.py"},
		{torchSteps, "the memory of one of them over its steps", "tools/torch_memory.py"},
		{"torch_tests.csv", "PyTorch's own tests of memory, with its allocator and with the pool", "tools/torch_tests.py"},
		{"toolkits_h200.csv", "epochs by the CUDA toolkit that built the program", "tools/builds.sh"},
		{"rounding_h200.csv", "epochs by what is rounded", "tools/builds.sh"},
		{"gemm_changes_h200.csv", "epochs before and after changes of the GEMM kernels", "build/train"},
		{"exchange_h200.csv", "epochs on several GPUs, by how they exchange updates", "build/train, tools/peers.py"},
		{"fewer_kernels_h200.csv", "epochs with 206 GEMM kernels and with 59", "build/train"},
		{"numerics_h200.csv", "distance from float64", "tools/numerics.py"},
		{scalingFile, "one GPU and several", "tools/ranks.sh"},
		{"allreduce_h200.csv", "an all-reduce, by where its memory comes from", "tools/allocbench"},
		{"ranks_checks_h200.txt", "what four GPUs train", "tools/ranks.sh"},
		{"ranks_failures_h200.txt", "how four GPUs stop when something goes wrong", "tools/ranks.sh"},
		{"allocators_h200.csv", "allocators by themselves", "tools/allocbench"},
		{"strategies_h200.csv", "the pool's strategies", "tools/allocbench"},
		{"slack_h200.csv", "the pool with more slack", "tools/allocbench"},
		{"recorded_h200.csv", "replayed jobs that PyTorch ran", "tools/allocbench"},
		{"recorded_torch_h200.json", "the same jobs in PyTorch; recorded_h200.csv says when", "tools/traces/replay.py"},
		{"traces.csv", "memory that each strategy reserves for every recorded trace; CI checks it", "tools/allocbench"},
		{"advice_h200.csv", "what jobs reserve in PyTorch with settings that a report recommends", "tools/traces/record.py"},
		{"registers_sm90.csv", "registers and spills of every kernel", "tools/registers.sh"},
	} {
		torch := strings.HasPrefix(f.name, "torch_")
		rows = append(rows, []string{"[" + f.name + "](" + f.name + ")", f.contents, "`" + f.command + "`", plotstyle.Origin(s.notes(f.name), "", torch || strings.Contains(f.name, "_h200."))})
	}
	return markdown(rows...)
}

// notes returns the comments of a file, lines that begin with #.
func (s *source) notes(name string) (notes []string) {
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.fail("%w", err)
	}
	for line := range strings.Lines(string(text)) {
		if note, ok := strings.CutPrefix(line, "#"); ok {
			notes = append(notes, strings.TrimSpace(note))
		}
	}
	return notes
}
