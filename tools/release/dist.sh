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
cd "$(dirname "$0")/../.."
# shellcheck source=tools/debs.sh
. tools/debs.sh
umask 022
export LC_ALL=C TZ=UTC

readonly oldest=2.28 largest=25000000
# The newest release of Debian whose symbols are of glibc 2.28, where the newer ones are not used.
readonly debian=bullseye gcc=10

die() {
    printf 'dist: %s\n' "$*" >&2
    exit 1
}

goarch=$(go env GOARCH)
case $goarch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) die "GOARCH is $goarch: a release is for amd64 or arm64" ;;
esac
# For another machine, how the names of its tools begin, and what runs its programs.
cross='' run=()
if [[ $machine != $(uname -m) ]]; then
    cross=$machine-linux-gnu- run=("qemu-$machine" -L "$PWD/build/sysroot-$goarch")
    for tool in "${cross}g++" "${run[0]}"; do
        type -P "$tool" >/dev/null || die "$tool is missing: install the packages g++-$machine-linux-gnu and qemu-user"
    done
fi
readonly sysroot=$PWD/build/sysroot-$goarch goarch machine cross run
export GOARCH=$goarch CGO_ENABLED=1

# get_sysroot unpacks headers and libraries of an older glibc.
get_sysroot() {
    local work uri deb link
    [[ ! -d $sysroot ]] || return 0
    echo "fetching headers and libraries of glibc $oldest with apt-get, once" >&2
    work=$(mktemp -d "$sysroot.XXXXXX")
    # shellcheck disable=SC2016 # apt-get fills this in
    uri=$(targets Debian '$(REPO_URI)' 'Component: main' | head -n 1)
    [[ $uri ]] || die "apt has no source of Debian"
    add_source "$work" "$goarch" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $debian main" ||
        die "apt-get update failed: see above"
    download_debs "$work" libc6 libc6-dev linux-libc-dev "libgcc-$gcc-dev" "libstdc++-$gcc-dev" "gcc-$gcc-base" ||
        die "apt-get download failed: see above"
    for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    find "$work/root" -type l -lname '/*' | while read -r link; do
        ln -sfrn "$work/root$(readlink "$link")" "$link"
    done
    mv "$work/root" "$sysroot"
    rm -r "$work"
}

# compile OPTION... is go build as a release needs it. netgo and osusergo are without glibc's plug-ins.
compile() {
    local libraries=$sysroot/usr/lib
    # gcc would look in its own folders first.
    CC="${cross}gcc --sysroot=$sysroot -B$libraries/$machine-linux-gnu/ -B$libraries/gcc/$machine-linux-gnu/$gcc/" GOFLAGS='' go build -trimpath -buildvcs=false \
        -ldflags "-s -w -buildid= -B none -X '$module/internal/program.stamp=$stamp' -extldflags '-static-libgcc'" "$@"
}

# check FILE refuses a program that is too large, or needs more than an old glibc.
check() {
    local needs newest
    [[ $arch != release ]] || (($(stat -c %s "$1") <= largest)) || die "$1 has more than $largest bytes"
    needs=$("${cross}objdump" -p "$1" | awk '/NEEDED/ { print $2 }' | grep -vE '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux.*)$' || true)
    [[ ! $needs ]] || die "$1 needs" "$needs"
    newest=$("${cross}objdump" -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
    [[ $(printf '%s\n' "$newest" $oldest | sort -V | tail -n 1) == "$oldest" ]] || die "$1 needs glibc $newest"
}

# manual NAME SUMMARY makes a manual page of the help of a program.
manual() {
    local name=${1##*/}
    printf '.TH %s 1 "%s" "mlpool %s"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n' "${name^^}" "$date" "$version" "$name" "$2"
    "${run[@]}" "$1" -help 2>&1 | sed "s/\\\\/\\\\e/g; s/^[.']/\\\\\&&/; s/-/\\\\-/g; s/^usage: //; 1a .fi\n.SH DESCRIPTION\n.nf"
}

commit=$(git rev-parse HEAD)
date=$(git log -1 --format=%cs)
epoch=$(git log -1 --format=%ct)
version=${VERSION:-$(git describe --tags --match 'v*' 2>/dev/null || echo "v0.0.0-$(date -d "@$epoch" +%Y%m%d%H%M%S)-${commit:0:12}")}
stamp="$version $commit $date"
git diff --quiet HEAD || stamp+=" modified"
module=$(go list -m)
arch=${CUDA_ARCH:-release}
readonly commit date epoch version stamp module arch

kernels=(CUDA=1 CUDA_ARCH="$arch" CROSS_COMPILE="$cross" CXX_LIBRARY=-l:libstdc++.a ${NVCC:+NVCC="$NVCC"})
make --no-print-directory help "${kernels[@]}" >/dev/null # which finds what is missing
get_sysroot
make kernels "${kernels[@]}"

name=mlpool-${version#v}-linux-$goarch
dir=build/$name
rm -rf "$dir"
mkdir -p "$dir"/{bin,lib/mlpool/include,share/man/man1,sbom}
compile -tags cuda,netgo,osusergo -o "$dir/bin/" ./cmd/train ./tools/allocbench
compile -tags netgo,osusergo -buildmode=c-shared -o "$dir/lib/mlpool/libmlpool.so" ./cmd/libmlpool
rm "$dir/lib/mlpool/libmlpool.h" # mlpool.h is for people
for file in "$dir"/bin/* "$dir/lib/mlpool/libmlpool.so"; do check "$file"; done

cp cmd/libmlpool/python/mlpool/*.* "$dir/lib/mlpool/"
cp cmd/libmlpool/mlpool.{h,hpp} "$dir/lib/mlpool/include/"
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
sha256sum -c SHA256SUMS            checks every file
licenses                           of all that is linked in
sbom                               the Go modules in each program, as CycloneDX
END
manual "$dir/bin/train" "train a multilayer perceptron on MNIST, and compare allocators of GPU memory" >"$dir/share/man/man1/train.1"
manual "$dir/bin/allocbench" "compare allocators of GPU memory on recorded traces" >"$dir/share/man/man1/allocbench.1"

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
{
    GOFLAGS='' go list -deps -tags cuda,netgo,osusergo -f '{{with .Module}}{{if not .Main}}{{with or .Replace .}}{{.Path}} {{.Dir}}{{end}}{{end}}{{end}}' \
        ./cmd/train ./tools/allocbench ./cmd/libmlpool | sort -u
    echo "std $(go env GOROOT)"
} | while read -r part folder; do
    mkdir -p "$dir/licenses/$part"
    find "$folder" -maxdepth 1 -type f -regextype egrep -iregex '.*/(licen[cs]e|copying|notice|patents)([.-].*)?' -exec cp -t "$dir/licenses/$part" {} +
    [[ $(ls "$dir/licenses/$part") ]] || die "$part has no licence in $folder"
done
install -D -m 644 "$eula" "$dir/licenses/cuda-runtime/${eula##*/}"
install -D -m 644 "$sysroot/usr/share/doc/gcc-$gcc-base/copyright" "$dir/licenses/libstdc++-and-libgcc/copyright"

find "$dir" -type f -name '*' ! -perm -u+x -exec chmod 644 {} +
(cd "$dir" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum) >build/SHA256SUMS
mv build/SHA256SUMS "$dir/"
tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C build -c "$name" | gzip -9n >"$dir.tar.gz"
(cd build && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
