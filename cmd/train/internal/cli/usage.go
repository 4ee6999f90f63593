package cli

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/internal/completion"
)

const usageHead = `usage: train [flags] <config>

Trains a multilayer perceptron on MNIST as the TOML file <config> says, and
prints a line for each epoch. The config - is standard input. Examples:

  train configs/mnist.toml
  train -set train.bsz=128 -set train.device=cpu configs/mnist.toml
  train -compare=custom,cuda configs/mnist.toml
  train -report page.html logs/mnist/latest
  mpirun -np 2 train configs/wide.toml

The environment variable ALLOCATOR_TYPE chooses who hands out device memory:

`

const usageTail = `
CUDA_VISIBLE_DEVICES chooses the GPU, or the GPUs of ranks that mpirun, srun or
torchrun starts. MASTER_ADDR and MASTER_PORT choose where ranks meet, on the
host of rank 0, and RENDEZVOUS_TIMEOUT how long they wait for each other at the
start, as in 5m: 30s if unset. Across hosts all ranks need the same text in
RENDEZVOUS_SECRET.

The exit code is 0 after a whole training, 3 if the loss became NaN or infinite,
130 after SIGINT (Ctrl-C), 143 after SIGTERM, 129 after SIGHUP, 141 if nobody
reads standard output any longer, 2 for a wrong command line and 1 for any other
failure.
`

func printUsage(w io.Writer, groups []flagGroup) {
	var b strings.Builder
	b.WriteString(usageHead)
	for _, kind := range backend.AllKinds {
		terminal.PrintEntry(&b, 10, kind, backend.AboutKinds[kind])
	}
	b.WriteString(usageTail)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
		for _, f := range g.flags {
			value, text := flag.UnquoteUsage(f)
			name := "-" + f.Name
			switch {
			case value != "" && completion.IsSwitch(f):
				name += "[=" + value + "]"
			case value != "":
				name += " " + value
			}
			terminal.PrintEntry(&b, 22, name, text)
		}
	}
	io.WriteString(w, b.String())
}
