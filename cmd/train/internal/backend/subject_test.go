package backend

import (
	"fmt"
	"strings"
	"testing"

	"mlpool/configs"
)

func TestSubjects(t *testing.T) {
	gpu, gpuGraph, cpu := &Backend{GPU: true}, &Backend{GPU: true, Graph: true}, &Backend{}
	for _, c := range []struct {
		on       *Backend
		env      string
		compare  bool
		among    string
		strategy string // of the config
		want     string
	}{
		{on: cpu, want: "[custom]"},
		{on: gpu, env: "cuda", want: "[cuda]"},
		{on: cpu, env: "custom:bestfit", want: "[custom:bestfit]"},
		{on: gpu, compare: true, want: "[custom cuda malloc]"},
		{on: gpuGraph, compare: true, want: "[custom cuda]"},
		{on: cpu, compare: true, want: "[custom malloc]"},
		{on: cpu, compare: true, env: "malloc", want: "[malloc custom]"},
		{on: cpu, compare: true, env: "custom:slab", want: "[custom:slab custom malloc]"},
		{on: cpu, compare: true, env: "custom:tlsf", want: "[custom:tlsf malloc]"},
		{on: gpu, compare: true, among: "cuda,custom,custom:bestfit", want: "[cuda custom custom:bestfit]"},
		{on: gpu, compare: true, among: "cuda,custom", env: "custom", want: "[custom cuda]"},
		{on: cpu, compare: true, among: "malloc,custom:tlsf,custom:bestfit", env: "custom", strategy: "bestfit", want: "[custom malloc custom:tlsf]"},
		{on: cpu, compare: true, among: "custom,custom:slack=1/64,custom:slab:segments=malloc", want: "[custom custom:slack=1/64 custom:slab:segments=malloc]"},

		{on: cpu, env: "custom:slack=2", want: "ALLOCATOR_TYPE=custom:slack=2: allocator.slack: is 2, want a number from 0 to 1"},
		{on: cpu, env: "custom:slak=2", want: "ALLOCATOR_TYPE=custom:slak=2: \"slak\" cannot be set for one allocator: use one of reuse, segments, gc_threshold, slack, busy_slack: did you mean slack?"},
		{on: cpu, compare: true, among: "custom:slack=0.5,custom:slack=1/2", want: "[custom:slack=0.5 custom:slack=1/2]"},
		{on: cpu, env: "jemalloc", want: `ALLOCATOR_TYPE=jemalloc: "jemalloc" is not an allocator: use one of custom, cuda, malloc`},
		{on: cpu, env: "custom:magic", want: `ALLOCATOR_TYPE=custom:magic: "magic" is not a strategy: use one of tlsf, sizeclass, `},
		{on: cpu, env: "custom:", want: `ALLOCATOR_TYPE=custom:: "" is not a strategy: use one of tlsf, `},
		{on: gpu, env: "cuda:tlsf", want: "ALLOCATOR_TYPE=cuda:tlsf: cuda has no options: use cuda, or custom:tlsf"},
		{on: cpu, env: "cuda", want: "ALLOCATOR_TYPE=cuda: cuda is cudaMallocAsync and needs a GPU, and this run is on the CPU: use one of custom, malloc"},
		{on: cpu, compare: true, among: "custom,jemalloc", want: `-compare=jemalloc: "jemalloc" is not an allocator`},
		{on: cpu, compare: true, among: "custom,", want: `-compare=: "" is not an allocator`},
		{on: gpu, compare: true, among: "custom,malloc:tlsf", want: "-compare=malloc:tlsf: malloc has no options: use malloc, or custom:tlsf"},
		{on: cpu, compare: true, among: "custom,cuda", want: "-compare=cuda: cuda is cudaMallocAsync and needs a GPU"},
		{on: gpuGraph, compare: true, among: "custom,malloc", want: "-compare=malloc: malloc is plain cudaMalloc, which no graph can capture: use one of custom, cuda, or train.executor"},
		{on: cpu, compare: true, among: "custom,malloc,custom", want: "[custom malloc custom#2]"},
		{on: cpu, compare: true, among: "malloc,custom,custom,custom", env: "custom", want: "[custom malloc custom#2 custom#3]"},
		{on: cpu, compare: true, among: "custom,custom:tlsf", want: "[custom custom:tlsf]"},
		{on: cpu, compare: true, among: "custom,custom:tlsf", env: "custom:tlsf", want: "[custom:tlsf custom]"},
		{on: cpu, compare: true, among: "custom", want: "-compare=custom is one allocator: name two or more, as in -compare=custom,cuda"},
		{on: cpu, compare: true, among: "custom,custom:slab", env: "malloc", want: "ALLOCATOR_TYPE=malloc names the reference, but -compare does not list it: add it there or unset ALLOCATOR_TYPE"},
		{on: cpu, compare: true, among: "custom,malloc", env: "cuda", want: "ALLOCATOR_TYPE=cuda: cuda is"},
	} {
		t.Setenv(AllocatorEnv, c.env)
		cfg := configs.Default()
		if c.strategy != "" {
			cfg.Allocator.Strategy = c.strategy
		}
		var among []string
		if c.among != "" {
			among = strings.Split(c.among, ",")
		}
		list, err := c.on.Subjects(cfg, c.compare, among)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
