# shellcheck shell=bash
# What dist.sh and wheel.sh share: the version, an older glibc to link with, the library and the licences. To be sourced.

cd "$(dirname "$0")/../.." || exit
# shellcheck source=tools/debs.sh
. tools/debs.sh
umask 022
export LC_ALL=C TZ=UTC

readonly oldest=2.28
# The newest release of Debian whose symbols are of glibc 2.28, where the newer ones are not used.
readonly debian=bullseye gcc=10

die() {
    printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
    exit 1
}

[[ ! ${ARCH-} ]] || case $ARCH in
x86_64) export GOARCH=amd64 ;;
aarch64) export GOARCH=arm64 ;;
*) die "ARCH is $ARCH: want x86_64 or aarch64" ;;
esac
goarch=$(go env GOARCH)
case $goarch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) die "GOARCH is $goarch: a release is for amd64 or arm64" ;;
esac
cross='' # how the names of tools for another machine begin
if [[ $machine != $(uname -m) ]]; then
    cross=$machine-linux-gnu-
    type -P "${cross}gcc" >/dev/null || die "${cross}gcc is missing: install the package gcc-${machine/_/-}-linux-gnu"
fi
readonly sysroot=$PWD/build/sysroot-$goarch goarch machine cross
export GOARCH=$goarch CGO_ENABLED=1

commit=$(git rev-parse HEAD)
date=$(git log -1 --format=%cs)
epoch=$(git log -1 --format=%ct)
version=${VERSION:-$(git describe --tags --match 'v*' 2>/dev/null || echo "v0.0.0-$(date -d "@$epoch" +%Y%m%d%H%M%S)-${commit:0:12}")}
# As Python writes it: v1.2.3-rc.1 is 1.2.3rc1, and v1.2.3-4-gabc is 1.2.3+4.gabc.
python_version=$(sed -E 's/^v//; s/-(a|b|rc)\.?([0-9]+)$/\1\2/; s/-/+/; s/-/./g' <<<"$version")
stamp="$version $commit $date"
git diff --quiet HEAD || stamp+=" modified"
module=$(go list -m)
readonly commit date epoch version python_version stamp module

# get_sysroot unpacks headers and libraries of an older glibc.
get_sysroot() {
    local work uri deb link
    [[ ! -d $sysroot ]] || return 0
    echo "fetching headers and libraries of glibc $oldest with apt-get, once" >&2
    mkdir -p build
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

# check FILE refuses a program that needs more than an old glibc.
check() {
    local needs newest
    needs=$("${cross}objdump" -p "$1" | awk '/NEEDED/ { print $2 }' | grep -vE '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux.*)$' || true)
    [[ ! $needs ]] || die "$1 needs ${needs//$'\n'/, }"
    newest=$("${cross}objdump" -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
    [[ $(printf '%s\n' "$newest" $oldest | sort -V | tail -n 1) == "$oldest" ]] || die "$1 needs glibc $newest"
}

# library DIR makes the Python package, with the library.
library() {
    compile -tags netgo,osusergo -buildmode=c-shared -o "$1/libmlpool.so" ./cmd/libmlpool
    check "$1/libmlpool.so"
    tools/release/package.sh "$1" "$python_version"
}

# licenses DIR PACKAGE... copies the licences of all that is linked into programs.
licenses() {
    {
        GOFLAGS='' go list -deps -tags cuda,netgo,osusergo -f '{{with .Module}}{{if not .Main}}{{with or .Replace .}}{{.Path}} {{.Dir}}{{end}}{{end}}{{end}}' "${@:2}" | sort -u
        echo "std $(go env GOROOT)"
    } | while read -r part folder; do
        mkdir -p "$1/$part"
        find "$folder" -maxdepth 1 -type f -regextype egrep -iregex '.*/(licen[cs]e|copying|notice|patents)([.-].*)?' -exec cp -t "$1/$part" {} +
        [[ $(ls "$1/$part") ]] || die "$part has no licence in $folder"
    done
    install -D -m 644 "$sysroot/usr/share/doc/gcc-$gcc-base/copyright" "$1/libstdc++-and-libgcc/copyright"
}
