#!/usr/bin/env bash
# Builds build/mlpool-VERSION-linux-amd64.tar.gz, a release for machines with glibc 2.28 or later. With a
# driver it trains on the GPU; it needs no Go and no CUDA. The same commit, tools and objects of kernels give the
# same bytes, in any folder.
#
#   tools/release/dist.sh
#
# The environment variables VERSION, NVCC and CUDA_ARCH replace the version (git describe), nvcc, and the
# GPUs (release); GOARCH=arm64 builds for machines with an Arm CPU. Needs Go, make, gcc, g++, nvcc, and apt for an
# older glibc to link with. For the other CPU it needs its gcc and g++, such as the package
# g++-aarch64-linux-gnu, qemu-user, and CUDA's runtime: see tools/install_cuda.sh -h.

set -euo pipefail
# shellcheck source=tools/release/release.sh
. "$(dirname "$0")/release.sh"

readonly largest=25000000
run=() # what runs programs for another machine
if [[ $cross ]]; then
    run=("qemu-$machine" -L "$sysroot")
    for tool in "${cross}g++" "${run[0]}"; do
        type -P "$tool" >/dev/null || die "$tool is missing: install the packages g++-${machine/_/-}-linux-gnu and qemu-user"
    done
fi
readonly run

# manual NAME SUMMARY makes a manual page of the help of a program.
manual() {
    local name=${1##*/}
    printf '.TH %s 1 "%s" "mlpool %s"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n' "${name^^}" "$date" "$version" "$name" "$2"
    "${run[@]}" "$1" -help 2>&1 | sed "s/\\\\/\\\\e/g; s/^[.']/\\\\\&&/; s/-/\\\\-/g; s/^usage: //; 1a .fi\n.SH DESCRIPTION\n.nf"
}

arch=${CUDA_ARCH:-release}
readonly arch

kernels=(CUDA=1 CUDA_ARCH="$arch" CROSS_COMPILE="$cross" CXX_LIBRARY=-l:libstdc++.a ${NVCC:+NVCC="$NVCC"})
make --no-print-directory help "${kernels[@]}" >/dev/null # which finds what is missing
get_sysroot
make kernels "${kernels[@]}"

name=mlpool-${version#v}-linux-$goarch
dir=build/$name
rm -rf "$dir"
mkdir -p "$dir"/{bin,share/man/man1,share/completions,sbom}
compile -tags cuda,netgo,osusergo -o "$dir/bin/" ./cmd/train ./tools/allocbench
for file in "$dir"/bin/*; do
    check "$file"
    [[ $arch != release ]] || (($(stat -c %s "$file") <= largest)) || die "$file has more than $largest bytes"
done
library "$dir/lib/mlpool"

cp -r configs "$dir/configs"
rm "$dir"/configs/*.go
cp LICENSE CHANGELOG.md "$dir/"
cat >"$dir/README" <<'END'
bin/train configs/mnist.toml       trains on the GPU, or on the CPU if there is none;
                                   a smaller model: configs/mnist_cpu.toml. MNIST, 11 MB, is
                                   downloaded once; without a network: -set data.data_dir=FOLDER
bin/train -help                    every flag; man share/man/man1/train.1
PYTHONPATH=lib python3 ...         import mlpool: the pool in PyTorch; lib/mlpool
                                   is for C and C++ too
source share/completions/train.bash
sha256sum -c SHA256SUMS            checks every file
licenses                           of all that is linked in
sbom                               the Go modules in each program, as CycloneDX
END
manual "$dir/bin/train" "train a multilayer perceptron on MNIST, and compare allocators of GPU memory" >"$dir/share/man/man1/train.1"
manual "$dir/bin/allocbench" "compare allocators of GPU memory on recorded traces" >"$dir/share/man/man1/allocbench.1"
for shell in bash zsh fish; do
    for program in train allocbench; do "${run[@]}" "$dir/bin/$program" -completion "$shell" >"$dir/share/completions/$program.$shell"; done
done

nvcc=$(realpath "$(sed -n '1s/ .*//p' "build/kernels-$arch${cross:+-$machine}/compiler")")
eula=''
for file in "${nvcc%/bin/nvcc}/EULA.txt" /usr/share/doc/nvidia-cuda-dev/copyright; do
    [[ $eula || ! -f $file ]] || eula=$file
done
[[ $eula ]] || die "found no licence of CUDA's runtime, such as EULA.txt beside bin/nvcc"
# The tool runs on this machine, also for a release for another. It writes the time of day, and a release has its commit's.
for file in "$dir"/bin/* "$dir/lib/mlpool/libmlpool.so"; do
    GOFLAGS='' GOARCH='' CGO_ENABLED=0 go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0 \
        bin -json -std -noserial -version "$version" "$file" |
        sed "s/\"timestamp\": \"[^\"]*\"/\"timestamp\": \"$(date -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)\"/" >"$dir/sbom/${file##*/}.cdx.json"
done
licenses "$dir/licenses" ./cmd/train ./tools/allocbench ./cmd/libmlpool
install -D -m 644 "$eula" "$dir/licenses/cuda-runtime/${eula##*/}"

find "$dir" -type f -name '*' ! -perm -u+x -exec chmod 644 {} +
(cd "$dir" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum) >build/SHA256SUMS
mv build/SHA256SUMS "$dir/"
tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C build -c "$name" | gzip -9n >"$dir.tar.gz"
(cd build && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
