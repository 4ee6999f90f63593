#!/usr/bin/env bash
# Tries a release as a machine without anything else: it unpacks the archive in an empty root file system with
# glibc alone, and trains, compares, reports and predicts there.
#
#   tools/release/try_release.sh ARCHIVE MNIST
#
# MNIST is the folder of the data set, as `train -data` prints it. Needs root, or user namespaces, and for an archive for
# another CPU qemu-user and the C library of a cross compiler, such as the packages qemu-user and libc6-arm64-cross.

set -euo pipefail
[[ $# == 2 && $1 != -* ]] || { echo "usage: ${0##*/} ARCHIVE MNIST" >&2; exit 2; }

fail() {
    printf 'try_release: %s\n' "$*" >&2
    exit 1
}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
name=$(basename "$1" .tar.gz)

into=(chroot "$root")
((EUID == 0)) || into=(unshare --user --map-root-user chroot "$root")
if ! "${into[@]/"$root"//}" true 2>/dev/null; then
    echo "try_release: neither root nor user namespaces here: nothing was tried"
    exit 0
fi

mkdir "$root"/{mnist,tmp,proc,dev}
tar -xf "$1" -C "$root"
(cd "$root/$name" && sha256sum --quiet -c SHA256SUMS) || fail "the sums of the files are wrong"
cp "$2"/*-ubyte* "$root/mnist/"
case $name in
*-arm64) machine=aarch64 ;;
*) machine=x86_64 ;;
esac
needs=("$root/$name"/bin/*) qemu=''
if [[ $machine != $(uname -m) ]]; then
    qemu=$(type -P "qemu-$machine") || fail "qemu-$machine is missing"
    needs=("$qemu")
    install -D -t "$root${qemu%/*}" "$qemu"
    install -D -t "$root/lib" "/usr/$machine-linux-gnu/lib"/{ld-linux*,lib{c,dl,m,pthread,rt}.so.*}
fi
while read -r library; do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done < <(ldd "${needs[@]}" | grep -o '/[^ ]*' | grep -v ':$' | sort -u)

# run PROGRAM ARGUMENT... prints what a program of the release prints.
run() { env -i HOME=/tmp PATH="$PATH" "${into[@]}" ${qemu:+"$qemu"} "/$name/bin/$1" "${@:2}" | tee "$root/said"; }

# said PATTERN wants a line of the last program.
said() { grep -qE -- "$1" "$root/said" || fail "nothing that was printed matches: $1"; }

quick=(-set data.data_dir=/mnist -set train.device=cpu -set model.feat_dim=16 -set model.num_layers=1 -set train.num_epochs=2)
run train -version
said '^mlpool v[0-9].*, commit [0-9a-f]{40} of [0-9-]+,.* CUDA [0-9]+'
run train "${quick[@]}" -set log.log_dir=/tmp/logs "/$name/configs/mnist_cpu.toml"
said '^epoch 2/2 '
run train "${quick[@]}" -set log.log_dir=/tmp/compared -compare=custom,malloc "/$name/configs/mnist_cpu.toml"
said '^malloc '
run train -report /tmp/page.html /tmp/logs/latest
grep -q '</html>' "$root/tmp/page.html" || fail "the report is no page"
run train -predict test /tmp/logs/latest
said '[0-9.]+ %'
run allocbench -version
said '^mlpool v[0-9].*, commit [0-9a-f]{40} of [0-9-]+,.* CUDA [0-9]+'
run allocbench -quick -runs 1 -scenario pair -allocator tlsf,malloc
said ' tlsf '
[[ $qemu ]] || python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$root/$name/lib/mlpool/libmlpool.so"
echo "$name works with glibc alone"
