# `make train` builds and trains, `make test` tests, and `make help` lists the other
# targets. Needs Go, git and make, and uses nvcc and a GPU if there are any.
#
#   CONFIG     the config for `make train`
#   CUDA=0     builds without CUDA even if there is nvcc; CUDA=1 requires CUDA
#   EMULATE=1  builds with g++ for a GPU that the CPU emulates: slow, for tests

.DEFAULT_GOAL := help

override EMULATE := $(filter-out 0,$(EMULATE))
include kernels/kernels.mk

# Whether nvcc is all that is missing for the GPU: CUDA is not given either.
nvcc_missing := $(if $(CUDA)$(EMULATE)$(NVCC),,$(findstring GPU,$(shell nvidia-smi -L 2>/dev/null)))

# CUDA needs cgo, which is off without a C compiler.
CUDA ?= $(if $(EMULATE),1,$(if $(NVCC),$(shell go env CGO_ENABLED),0))
override CUDA := $(CUDA)
cuda := $(filter-out 0,$(CUDA))
ifneq ($(EMULATE),)
ifeq ($(cuda),)
$(error EMULATE=1 and CUDA=0 exclude each other)
endif
endif
ifneq ($(cuda),)
ifeq ($(NVCC)$(EMULATE),)
$(error CUDA=$(CUDA) needs nvcc: tools/install_cuda.sh installs it)
endif
ifneq ($(shell go env CGO_ENABLED),1)
$(error CUDA=$(CUDA) needs cgo, which is off: unset CGO_ENABLED and install gcc, or build with CUDA=0)
endif
endif

# Without a GPU, make train builds without CUDA, even if nvcc is installed.
gpu = $(if $(cuda),$(findstring GPU,$(shell nvidia-smi -L 2>/dev/null)))
CONFIG ?= $(if $(gpu),configs/mnist.toml,configs/mnist_cpu.toml)

STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What -version says where the go command notes no commit: see internal/program.
stamp = $(if $(wildcard .git),$(shell git log -1 --format='%(describe:tags=true,match=v*) %H %cs' 2>/dev/null \
	&& { git diff --quiet HEAD 2>/dev/null || echo modified; }))
GO_LDFLAGS = -X '$(shell go list -m)/internal/program.stamp=$(stamp)'

.PHONY: train
train: ## build, fetch MNIST and train, on the GPU if there is one
ifneq ($(nvcc_missing),)
	@echo "fetching nvcc for this GPU into $(FETCHED_CUDA), a download of 1 GB; make train CUDA=0 trains on the CPU instead"
	@if tools/install_cuda.sh $(FETCHED_CUDA); then $(MAKE) --no-print-directory train NVCC=$(FETCHED_CUDA)/bin/nvcc; \
	else echo "to train on the GPU, install gcc, g++ and NVIDIA's CUDA toolkit 11.8 or later, and put nvcc on PATH:"; \
		echo "https://developer.nvidia.com/cuda-downloads has it for each system; training on the CPU now"; \
		$(MAKE) --no-print-directory train CUDA=0; fi
else
	@$(MAKE) --no-print-directory build CUDA=$(if $(gpu)$(EMULATE),1,0)
	build/train $(CONFIG)
endif

# Many packages wait for processes and time limits, so that more of them run at once than there are cores. The
# collector runs when a process has half a GiB, and the linker leaves out what only debuggers read. make check vets.
GO_TEST := go test -p $$((2 * $$(nproc 2>/dev/null || echo 1))) -vet=off -ldflags='-s -w' -timeout 60m
test: export GOGC ?= off
test: export GOMEMLIMIT ?= 512MiB
race: export GOGC ?= 400

# The packages whose tests use kernels: the others are the same with CUDA. Without a GPU these differ little, so the
# long tests ran above.
on_kernels = $$(go list -test -tags cuda -f '{{$$test := .ForTest}}{{range .Deps}}{{if eq . "$(shell go list -m)/kernels"}}{{$$test}}{{end}}{{end}}' ./... | sort -u)

# The tests of tools take longest, so they start first: at the end they would run alone.
.PHONY: test
test: $(if $(cuda),kernels) ## run every test that this machine can run
	$(GO_TEST) ./tools/... ./...
	$(if $(cuda),$(if $(EMULATE),REQUIRE_GPU=1) $(GO_TEST) -tags cuda $(if $(gpu)$(EMULATE),,-short) $(on_kernels))

.PHONY: race
race: ## run the tests with the race detector, and few of those that only compute or run scripts
	$(GO_TEST) -race $$(go list ./... | grep -v -e '/kernels/ref$$' -e '/tools$$' -e '/tools/allocbench' -e '/tools/figures$$')
	$(GO_TEST) -race -short ./kernels/ref ./tools ./tools/allocbench/...

.PHONY: build
build: $(if $(cuda),kernels) ## build build/train, with CUDA if there is nvcc
	go build $(if $(cuda),-tags cuda) -ldflags "$(GO_LDFLAGS)" -o build/train ./cmd/train

.PHONY: lib
lib: ## build build/mlpool: a Python package with libmlpool.so, and headers for C and C++; needs gcc
	CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -ldflags='-s -w' -o build/mlpool/libmlpool.so ./cmd/libmlpool
	tools/release/package.sh build/mlpool
	@ln -f build/mlpool/libmlpool.so build/libmlpool.so

.PHONY: wheel
wheel: ## build the wheel of the package, build/mlpool-VERSION-py3-none-manylinux_2_28_x86_64.whl; ARCH=aarch64 for Arm
	ARCH="$(ARCH)" VERSION="$(VERSION)" tools/release/wheel.sh

.PHONY: dist
dist: ## build a release, build/mlpool-VERSION-linux-amd64.tar.gz, for every GPU; GOARCH=arm64 for Arm servers
	$(if $(NVCC),NVCC="$(NVCC)") $(if $(filter command%,$(origin CUDA_ARCH)),CUDA_ARCH="$(CUDA_ARCH)") VERSION="$(VERSION)" tools/release/dist.sh

.PHONY: check
check: $(if $(cuda),kernels) ## run gofmt, go vet, staticcheck and more linters where they are, with CUDA too if there is nvcc
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; false; }
	go vet ./...
	$(STATICCHECK) ./...
	$(if $(cuda),go vet -tags cuda ./...)
	$(if $(cuda),$(STATICCHECK) -tags cuda ./...)
	$(if $(shell command -v shellcheck),shellcheck tools/*.sh tools/*/*.sh .ci/run)
	$(if $(shell command -v clang-format-19),git ls-files '*.c' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh' | xargs clang-format-19 -n -Werror)
	$(if $(shell command -v pyflakes3),git ls-files '*.py' | xargs pyflakes3)
	$(if $(shell command -v mypy),mypy --config-file cmd/libmlpool/python/pyproject.toml --cache-dir build/mypy cmd/libmlpool/python/mlpool tools/release/pack.py)

.PHONY: clean
clean: ## remove everything built, but not the logs, nor an nvcc that was fetched
	rm -f kernels/libkernels.a kernels/archive_cuda.go
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -path $(FETCHED_CUDA) -exec rm -rf {} +
	@[ ! -e $(FETCHED_CUDA) ] || echo "kept $(FETCHED_CUDA), the fetched nvcc: rm -r $(FETCHED_CUDA) removes it"

.PHONY: help
help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 11
	@echo; echo 'Variables, as in make train CONFIG=configs/wide.toml:'
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)
