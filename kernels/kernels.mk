# Compiles the kernels: `make kernels` leaves libkernels.a, and archive_cuda.go
# that tells go how to link it. To be included by a Makefile; nvcc 11.8 or newer. Before 12.1
# there are no kernels by TMA and by warpgroup MMA.
#
#   NVCC       nvcc, if another one than on PATH, in CUDA_HOME, /usr/local/cuda or build/cuda12
#   CUDA_ARCH  for which GPUs, as nvcc -arch takes it, or release for 7.0 and newer;
#              if unset this machine's GPU, or else every major architecture
#
#   CXX_LIBRARY    how to link libstdc++; -l:libstdc++.a is without the shared one
#   CROSS_COMPILE  for a machine other than this one: how the names of its tools begin, as in aarch64-linux-gnu-
#
# EMULATE=1 makes the kernels run on the CPU, in kernels/emulator: needs g++, no nvcc.

KERNELS := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
FETCHED_CUDA := build/cuda12
NVCC ?= $(firstword $(wildcard $(shell command -v nvcc) $(addsuffix /bin/nvcc,$(CUDA_HOME) /usr/local/cuda $(FETCHED_CUDA))))
CUDA_ARCH ?= $(if $(findstring GPU,$(shell nvidia-smi -L 2>/dev/null)),native,all-major)
CXX_LIBRARY ?= -lstdc++
NVCCFLAGS ?= -O3 -Xcompiler -fPIC -Wno-deprecated-gpu-targets
# A release is linked with an older libgcc, which lacks functions for atomics that newer compilers call on Arm.
NVCCFLAGS += $(if $(CROSS_COMPILE),-ccbin $(CROSS_COMPILE)g++) $(if $(filter aarch64,$(kernels_machine)),-Xcompiler -mno-outline-atomics)
kernels_root := $(KERNELS)/cuda
# glibc.h says why it comes first.
kernels_includes := -Xcompiler -include,$(kernels_root)/glibc.h -I$(kernels_root)
# TMA multicast (tma.cuh) comes with advice for GPUs to come, unless refused.
ifneq ($(NVCC),)
NVCCFLAGS += $(addprefix -Xptxas ,$(shell $(NVCC) $(kernels_includes) -arch=sm_90 -Xptxas --help -x cu -cubin -o /dev/null /dev/null 2>/dev/null \
	| grep -o -m 1 -e '--suppress-async-bulk-multicast-advisory-warning'))
endif

# Warpgroup MMA (warpgroup.cu of two folders) takes nvcc 12.1 or newer and its own target, sm_90a, next to the
# others where they have compute capability 9.0. With 160 registers a thread its CTAs of 384
# leave 1024 to each quarter of an SM, where exchange runs at the same time (nn/exchange.cu).
kernels_hopper := $(filter all all-major release sm_90 sm_90a,$(CUDA_ARCH)) \
	$(if $(filter native,$(CUDA_ARCH)),$(filter 9.0,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
comma := ,
ifneq ($(strip $(kernels_hopper)),)
ifneq ($(NVCC),)
kernels_warpgroup := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | { read major minor && \
	[ $$((100 * major + minor)) -ge 1201 ] && echo $(if $(filter sm_90a,$(CUDA_ARCH)),,-gencode arch=compute_90a$(comma)code=sm_90a) -DHAVE_WARPGROUP=1 -maxrregcount=160; })
endif
endif

# A release has code for every major architecture, which its minor ones run too, and PTX for the driver of GPUs that
# came later, or between 9.0 and the newest. All of it is compressed. It names no temporary files, and functions in
# anonymous namespaces by the path of the source from here, not by the folder.
kernels_arch := -arch=$(CUDA_ARCH)
ifeq ($(CUDA_ARCH),release)
kernels_majors := $(shell $(or $(NVCC),false) --list-gpu-code 2>/dev/null | sed -n 's/^sm_\([789]0\|1[0-9]0\)$$/\1/p')
kernels_arch := $(foreach a,$(kernels_majors),-gencode arch=compute_$a$(comma)code=sm_$a) \
	$(foreach a,$(sort $(filter 90,$(kernels_majors)) $(lastword $(kernels_majors))),-gencode arch=compute_$a$(comma)code=compute_$a) -Xfatbin -compress-all
kernels_names = -Xcudafe "--orig_src_path_name $<"
endif

# The folder of libcudart_static.a: next to nvcc, where NVIDIA calls Arm servers sbsa, or Debian's.
kernels_machine := $(or $(firstword $(subst -, ,$(CROSS_COMPILE))),$(shell uname -m))
CUDA_LIB = $(dir $(firstword $(wildcard $(addsuffix /libcudart_static.a, \
	$(if $(CROSS_COMPILE),,$(dir $(realpath $(NVCC)))../lib64) \
	$(dir $(realpath $(NVCC)))../targets/$(kernels_machine:aarch64=sbsa)-linux/lib \
	/usr/lib/$(kernels_machine)-linux-gnu))))

kernels_build := build/kernels-$(if $(EMULATE),emulated,$(CUDA_ARCH))$(if $(CROSS_COMPILE),-$(kernels_machine))
kernels_sources := $(wildcard $(kernels_root)/*/*.cu $(kernels_root)/gemm/*/*.cu)
kernels_headers := $(wildcard $(kernels_root)/*.h $(kernels_root)/*.cuh $(kernels_root)/*/*.cuh $(kernels_root)/gemm/*/*.cuh)
kernels_objects := $(patsubst $(kernels_root)/%.cu,$(kernels_build)/%.o,$(kernels_sources))

# Delete a target if its command fails, since the file may be incomplete.
.DELETE_ON_ERROR:

# Uses all cores, unless make has a number of jobs. If two run at once, as in `make -j train test`,
# the second waits for the first, where flock exists.
.PHONY: kernels
kernels: ## compile the kernels alone, for go build, run and test -tags cuda
	@mkdir -p build && { flock 9 2>/dev/null; $(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1)) \
		$(KERNELS)/archive_cuda.go 9>&-; } 9>build/kernels.lock

# Before the long compilation, print one message.
$(kernels_build)/said: $(kernels_sources) $(kernels_headers)
	@mkdir -p $(@D)
	@echo "compiling the kernels for $(kernels_for) of one core's time, once for these sources"
	@touch $@

ifeq ($(EMULATE),)
kernels_for := $(if $(filter all%,$(CUDA_ARCH)),every GPU (CUDA_ARCH=$(CUDA_ARCH)): two and a half minutes,$(CUDA_ARCH): a minute)
kernels_libraries = -L$(CUDA_LIB) -lcudart_static -ldl -lrt -lpthread $(CXX_LIBRARY)

# What compiles: objects of another compiler are made again.
kernels_compiler := $(kernels_build)/compiler
$(kernels_compiler): FORCE
	@mkdir -p $(@D)
	@echo "$(NVCC) $(NVCCFLAGS) $(kernels_warpgroup) $$($(NVCC) --version | tail -n 1)" > $@.now
	@cmp -s $@.now $@ || cp $@.now $@
	@rm $@.now

$(kernels_build)/%.o: $(kernels_root)/%.cu $(kernels_headers) $(kernels_compiler) | $(kernels_build)/said
	@mkdir -p $(@D)
	$(NVCC) $(kernels_arch) $(if $(filter %warpgroup.o,$@),$(kernels_warpgroup)) $(NVCCFLAGS) $(kernels_names) $(kernels_includes) -c $< -o $@
	$(if $(filter release,$(CUDA_ARCH)),$(CROSS_COMPILE)objcopy --wildcard --strip-symbol='*tmpxft_*' $@)
else
kernels_for := a GPU that the CPU emulates: a minute
EMULATOR := $(KERNELS)/emulator
kernels_libraries := -lpthread -lstdc++ -lm
kernels_objects += $(patsubst $(EMULATOR)/%.cpp,$(kernels_build)/emulator/%.o,$(wildcard $(EMULATOR)/*.cpp))
# Warnings are for nvcc to give: of the sources, not of what they were translated to.
EMULATOR_FLAGS := -std=c++20 -O2 -fPIC -Wno-psabi -I$(EMULATOR) -I$(kernels_build)/cuda

$(kernels_build)/translated: $(kernels_sources) $(kernels_headers) $(wildcard $(EMULATOR)/translate/*.go) | $(kernels_build)/said
	@mkdir -p $(kernels_build)/emulator
	go run ./$(EMULATOR)/translate $(kernels_build)/cuda $(kernels_root) $(kernels_sources) $(kernels_headers)
	@touch $@

# A file whose translation is the same keeps its time, so that only what changed is compiled again.
kernels_translated_headers := $(kernels_headers:$(kernels_root)/%=$(kernels_build)/cuda/%)
$(kernels_sources:$(kernels_root)/%=$(kernels_build)/cuda/%.cpp) $(kernels_translated_headers): $(kernels_build)/translated ;

$(kernels_build)/%.o: $(kernels_build)/cuda/%.cu.cpp $(kernels_translated_headers) $(wildcard $(EMULATOR)/*.h)
	@mkdir -p $(@D)
	g++ $(EMULATOR_FLAGS) -w -c $< -o $@

# All that runs is compiled here, so it may use every instruction that this CPU has, but none that rounds otherwise.
$(kernels_build)/emulator/%.o: $(EMULATOR)/%.cpp $(wildcard $(EMULATOR)/*.h) $(kernels_translated_headers)
	g++ $(EMULATOR_FLAGS) -O3 -march=native -ffp-contract=off -Wall -c $< -o $@
endif

$(kernels_build)/libkernels.a: $(kernels_objects)
	rm -f $@
	$(CROSS_COMPILE)ar rcsD $@ $^

# The archive is copied into the package's folder, which is all that a #cgo line
# can name in any checkout. Nothing is written unless it changed.
$(KERNELS)/archive_cuda.go: $(kernels_build)/libkernels.a FORCE
	@cmp -s $< $(KERNELS)/libkernels.a || cp $< $(KERNELS)/libkernels.a
	@printf '%s\n' \
		'//go:build cuda$(if $(CROSS_COMPILE), && $(kernels_machine:aarch64=arm64))' '' '// Code generated by kernels.mk. DO NOT EDIT.' '' 'package kernels' '' \
		'// #cgo CFLAGS: -I$${SRCDIR}/cuda' \
		'// #cgo LDFLAGS: $${SRCDIR}/libkernels.a $(kernels_libraries)' \
		'import "C"' '' \
		"const run_make_kernels_before_building_with_tag_cuda = \"$$(sha256sum < $< | cut -d' ' -f1)\"" \
		> $(kernels_build)/archive_cuda.txt
	@cmp -s $(kernels_build)/archive_cuda.txt $@ || cp $(kernels_build)/archive_cuda.txt $@

.PHONY: FORCE
FORCE:
