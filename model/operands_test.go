package model_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/model"
)

var writeLaunches = flag.Bool("record", false, "write the launches of the trainings, rather than compare with those that are there")

// launchesFile has the launches of some trainings with all their operands.
const launchesFile = "testdata/launches.txt"

// idle is a queue that records launches and runs nothing. Arrays are numbered in the order in which
// they first appear.
type idle struct {
	device.HostQueue
	fuses bool // whether a dgrad and its wgrad are faster in one launch
	names map[uintptr]string
	text  strings.Builder
}

func (q *idle) FusesWgrad(kernels.GEMM) bool { return q.fuses }

// Upload and Download do nothing, since the addresses have no memory.
func (q *idle) Upload(uintptr, []byte) error   { return nil }
func (q *idle) Download([]byte, uintptr) error { return nil }

// addresses is a driver that hands out every address once, without memory.
type addresses struct {
	device.HostDriver
	next uintptr
}

func (a *addresses) Malloc(bytes int64) (uintptr, error) {
	a.next += 4096
	addr := a.next
	a.next += uintptr(bytes) &^ 4095
	return addr, nil
}

func (a *addresses) Free(uintptr) error { return nil }

// array is the name of the array at an address.
func (q *idle) array(addr uintptr) string {
	if addr == 0 {
		return "-"
	}
	if q.names[addr] == "" {
		q.names[addr] = fmt.Sprintf("t%d", len(q.names))
	}
	return q.names[addr]
}

// launch records a launch.
func (q *idle) launch(l device.Launch, _ func() error) error {
	if n := len(l.GEMMs); n > 1 || l.Name == "wgrad+sgd" {
		fmt.Fprintln(&q.text, "group of", n)
		for _, g := range l.GEMMs {
			q.gemm("  ", g)
		}
		return nil
	}
	if len(l.GEMMs) == 1 {
		name := "gemm "
		if l.Name == "dgrad+wgrad+sgd" {
			name = "dgrad+wgrad "
		}
		q.gemm(name, l.GEMMs[0])
		return nil
	}
	name := strings.TrimSuffix(l.Name, "+gradients")
	if l.Prefetch&kernels.PrefetchB != 0 {
		name += " prefetch:w"
	}
	q.note(name, l.Args, l.Arrays...)
	return nil
}

func (q *idle) note(name string, args []any, arrays ...uintptr) {
	fmt.Fprint(&q.text, name, " ", args)
	for _, a := range arrays {
		fmt.Fprint(&q.text, " ", q.array(a))
	}
	fmt.Fprintln(&q.text)
}

func (q *idle) gemm(name string, g kernels.GEMM) {
	name += []string{"nn", "nt", "tn"}[g.Layout] + []string{"", "+relu", "+drelu", "+sgd"}[g.Epilogue]
	if g.Alpha != 0 {
		name += fmt.Sprint(" ", g.Alpha)
	}
	for i, operand := range []string{"a", "b", "c"} {
		if g.Prefetch&(1<<i) != 0 {
			name += " prefetch:" + operand
		}
	}
	q.note(name, []any{g.M, g.N, g.K}, g.C, g.A, g.B, g.Y, g.Indices)
}

// launchesOf trains an epoch of two batches and returns its launches.
func launchesOf(t *testing.T, width, batch, layers int, fuse, fuses bool) string {
	blank := func(n int) model.Set {
		return model.Set{Images: tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(n, 784)), Labels: tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(n))}
	}
	alloc := allocator.NewMalloc(new(addresses))
	q := &idle{fuses: fuses, names: make(map[uintptr]string)}
	trainer, err := model.NewTrainer(device.New(device.Observe(q, q.launch), alloc, fuse), blank(2*batch), blank(100), model.Weights(784, width, layers, data.Classes, 0), options(2*batch, batch))
	must.OK(t, err)
	if _, err := trainer.Epoch(context.Background()); err != nil {
		t.Error(err)
	}
	must.OK(t, trainer.Close())
	must.OK(t, alloc.Close())
	return q.text.String()
}

// TestLaunchesAndOperands compares the launches of trainings, with their sizes, operands and those that
// may be prefetched, with a file.
func TestLaunchesAndOperands(t *testing.T) {
	var got strings.Builder
	for _, c := range []struct {
		width, batch, layers int
		fuse, fuses          bool
	}{
		{784, 64, 4, true, false},
		{784, 64, 4, false, false},
		{784, 1024, 4, true, false},
		{784, 1024, 2, false, false},
		{2048, 64, 4, true, true},
		{2048, 64, 4, true, false},
		{2048, 64, 4, false, true},
		{100, 61, 1, true, true},
		{8, 4, 20, true, false},
		{8, 4, 20, true, true},
	} {
		fmt.Fprintf(&got, "# feat_dim = %d, bsz = %d, num_layers = %d, fuse = %v, dgrad with wgrad %v\n", c.width, c.batch, c.layers, c.fuse, c.fuses)
		got.WriteString(launchesOf(t, c.width, c.batch, c.layers, c.fuse, c.fuses))
	}
	if *writeLaunches {
		must.OK(t, os.WriteFile(launchesFile, []byte(got.String()), 0o666))
	}
	want, err := os.ReadFile(launchesFile)
	must.OK(t, err)
	g, w := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	section := ""
	for i := range min(len(g), len(w)) {
		if strings.HasPrefix(w[i], "#") {
			section = w[i]
		}
		if g[i] != w[i] {
			t.Fatalf("%s\nline %d is %q, want %q: run this test with -record if that is meant", section, i+1, g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Errorf("%d lines, want %d", len(g), len(w))
	}
}
