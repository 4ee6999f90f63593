# `make train` builds the trainer and trains, `make test` tests it; `make help`
# lists the rest. Go, git and make are enough; nvcc and a GPU are used where
# they are.
#
#   CONFIG     the config that `make train` trains
#   RUNS       the log folders that `make plot` draws; FOLDER/... is every run in it
#   CUDA=0     leaves CUDA out even where nvcc is; CUDA=1 insists on it
#   EMULATE=1  builds for a GPU that the CPU emulates, with g++ alone: slow, for tests

.DEFAULT_GOAL := help

override EMULATE := $(filter-out 0,$(EMULATE))
include kernels/kernels.mk

# cgo may be off, by choice or for want of a C compiler: then there is no CUDA.
CUDA ?= $(if $(EMULATE),1,$(if $(NVCC),$(shell go env CGO_ENABLED),0))
override CUDA := $(CUDA)
cuda := $(filter-out 0,$(CUDA))
ifneq ($(EMULATE),)
ifeq ($(cuda),)
$(error EMULATE=1 does not go with CUDA=0)
endif
endif
ifneq ($(cuda),)
ifeq ($(NVCC)$(EMULATE),)
$(error CUDA=$(CUDA) needs nvcc: tools/install_cuda.sh installs it)
endif
ifneq ($(shell go env CGO_ENABLED),1)
$(error CUDA=$(CUDA) needs cgo, which is off: unset CGO_ENABLED and install gcc, or leave CUDA out with CUDA=0)
endif
endif

# With nvcc but no GPU, training is the CPU's job and needs no CUDA build.
gpu = $(if $(cuda),$(findstring GPU,$(shell nvidia-smi -L 2>/dev/null)))
CONFIG ?= $(if $(gpu),configs/mnist.toml,configs/mnist_cpu.toml)

STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
RUNS ?= logs/...

.PHONY: train
train: ## build, fetch MNIST, and train: on the GPU if there is one and nvcc, else on the CPU
	@$(MAKE) --no-print-directory build CUDA=$(if $(gpu)$(EMULATE),1,0)
	build/train $(CONFIG)

.PHONY: test
test: $(if $(cuda),kernels) ## every test that this machine can run
	$(if $(EMULATE),REQUIRE_GPU=1 go test -tags cuda -timeout 30m ./...,go test -timeout 30m ./...)
	$(if $(EMULATE),,$(if $(cuda),go test -timeout 30m -tags cuda ./...))

.PHONY: build
build: $(if $(cuda),kernels) ## build/train alone, with CUDA where nvcc is
	go build $(if $(cuda),-tags cuda) -o build/train ./cmd/train

.PHONY: check
check: $(if $(cuda),kernels) ## gofmt, go vet, staticcheck, shellcheck; with CUDA too where nvcc is
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; false; }
	go vet ./...
	$(STATICCHECK) ./...
	$(if $(cuda),go vet -tags cuda ./...)
	$(if $(cuda),$(STATICCHECK) -tags cuda ./...)
	$(if $(shell command -v shellcheck),shellcheck tools/*.sh tools/*/*.sh .ci/run)

.PHONY: plot
plot: ## draw the training losses of RUNS to build/train_losses.png
	@mkdir -p build
	go run ./tools/plot -o build/train_losses.png $(RUNS)

.PHONY: clean
clean: ## remove what was built; logs stay
	rm -rf build kernels/libkernels.a kernels/archive_cuda.go

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 11
	@echo; echo 'Variables, as in make train CONFIG=configs/wide.toml:'
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)
