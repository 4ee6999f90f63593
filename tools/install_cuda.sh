#!/usr/bin/env bash
# Installs nvcc on Debian and its derivatives if it is missing. Debian keeps it in components
# that few machines have configured: the script adds them with the mirror and the key of the
# configured source. `--help` has the details.

set -euo pipefail

usage() {
    cat <<END
usage: ${0##*/} [DIR [arm64]]

Installs the CUDA toolkit of this Debian release, about 1.6 GB, unless nvcc is on PATH.

  DIR    unpack CUDA 12 into this folder instead, as DIR/bin/nvcc, and change nothing
         else: that of Debian $newer, or of this Ubuntu from 24.04 on. Downloads about
         1 GB and keeps 0.4 GB. If g++ is newer than nvcc supports, adds an older one
         from there. Needs no root, but g++.
  arm64  add to DIR the library with which a release for Linux on arm64 is linked, of
         Debian $newer: downloads 1 GB more and keeps 1 MB.
END
}

readonly package=nvidia-cuda-toolkit
# The package may bring another gcc than the default. nvcc needs a g++ of the same version.
readonly compiler=g++

here=$(realpath -- "${BASH_SOURCE[0]}")
# shellcheck source=tools/debs.sh
. "${here%/*}/debs.sh"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

elsewhere="install the CUDA toolkit 11.8 or later from your system or NVIDIA, and put nvcc on PATH"

# Debian's release with the newer toolkit, and its packages with nvcc, the headers and the static
# runtime.
readonly newer=trixie
readonly parts_of_newer=(nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4)

# Mathematical libraries, 3 GB.
readonly left_out=(--exclude='*cublas*' --exclude='*cufft*' --exclude='*curand*' --exclude='*cusolver*'
    --exclude='*cusparse*' --exclude='*libnpp*' --exclude='*nvjpeg*' --exclude='*libnvrtc*')

# source_of_newer prints where the newer toolkit is, as in a .list of apt.
source_of_newer() {
    local vendor=Debian release=$newer components="main contrib non-free" uri id='' VERSION_CODENAME='' VERSION_ID=''
    # shellcheck source=/dev/null
    id=$(. "${OS_RELEASE-/etc/os-release}" 2>/dev/null && echo "$ID ${VERSION_ID%%.*} $VERSION_CODENAME") || id=''
    if [[ $id == "ubuntu "* ]]; then
        read -r _ VERSION_ID release <<<"$id"
        ((VERSION_ID >= 24)) || die "the CUDA of this Ubuntu is too old: $elsewhere"
        vendor=Ubuntu components="main universe multiverse"
    fi
    # shellcheck disable=SC2016 # apt-get fills this in
    uri=$(targets "$vendor" '$(REPO_URI)' 'Component: main' | head -n 1)
    [[ $uri ]] || die "apt has no source of $vendor: $elsewhere"
    echo "deb [signed-by=/usr/share/keyrings/${vendor,,}-archive-keyring.gpg] $uri $release $components"
}

# older_compiler DIR prints the packages of a g++ that the toolkit of DIR's source supports, if none of these is
# installed. The toolkit's nvvm/bin/g++ looks for them by these names.
older_compiler() {
    local newest version
    newest=$(in_source "$1" apt-cache show "${parts_of_newer[0]}" | sed -n 's/^Depends: //p' |
        grep -o 'g++-[0-9]*' | cut -d - -f 2 | sort -n | tail -n 1) || return
    for ((version = 7; version <= newest; version++)); do
        ! type -P "g++-$version" >/dev/null || return 0
    done
    in_source "$1" apt-cache depends --recurse --no-{suggests,recommends,conflicts,breaks,replaces,enhances} "g++-$newest" |
        grep -E "^(g\\+\\+|gcc|cpp|libgcc|libstdc\\+\\+)-$newest(-|\$)"
}

# unpack DIR unpacks the newer toolkit in NVIDIA's layout. It uses a temporary folder next to
# DIR and renames it after nvcc has preprocessed a file, for which it runs g++, so that a failure leaves nothing behind.
unpack() (
    dir=$1
    [[ ! -e $dir || -z $(ls -A -- "$dir") ]] || die "$dir is not empty: name an empty or a new folder"
    for tool in apt-get dpkg dpkg-deb tar; do
        type -P "$tool" >/dev/null || die "$tool is missing: $elsewhere"
    done
    type -P g++ >/dev/null || die "g++ is missing: install it"
    source=$(source_of_newer) || exit

    work=$(mkdir -p -- "${dir%/*}/" && mktemp -d -- "$dir.XXXXXX") || die "cannot write to the parent of $dir: name another folder"
    # shellcheck disable=SC2064 # expand the name now
    trap "rm -rf -- ${work@Q}" EXIT
    mkdir "$work/root"
    say "downloading the CUDA toolkit, about 1 GB"
    add_source "$work" "$(dpkg --print-architecture)" "$source" || die "apt-get update failed: see above"
    compilers=$(older_compiler "$work") || die "found no g++ for the toolkit: $elsewhere"
    # shellcheck disable=SC2086 # words
    download_debs "$work" "${parts_of_newer[@]}" $compilers || die "apt-get download failed: see above"
    for deb in "$work"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/root" "${left_out[@]}" || die "could not unpack ${deb##*/}: see above"
        rm "$deb"
    done
    arrange "$work/root/usr" "$work/toolkit" || die "the toolkit has an unknown layout: see above"
    "$work/toolkit/bin/nvcc" -x cu -E -o "$work/empty.ii" /dev/null || die "the nvcc of the toolkit does not work with this g++: $elsewhere"
    release=$(release_of "$work/toolkit")
    mv -T -- "$work/toolkit" "$dir"
    say "CUDA $release is in $dir"
)

# release_of DIR prints the release of DIR/bin/nvcc, such as 12.4, or nothing if it does not start.
release_of() { "$1/bin/nvcc" --version | sed -n 's/^Cuda compilation tools, release \([^,]*\),.*/\1/p' || true; }

# add_arm64 DIR adds the static runtime for arm64 to the toolkit in DIR, where NVIDIA's own toolkit would have it.
add_arm64() (
    library=$1/targets/sbsa-linux/lib/libcudart_static.a
    [[ ! -e $library ]] || { say "$library already exists"; exit 0; }
    source=$(source_of_newer) || exit
    [[ $source != *ubuntu* ]] || die "the servers of Ubuntu for amd64 have no packages for arm64: install NVIDIA's cuda-cudart-cross-sbsa"
    work=$(mktemp -d -- "$1/arm64.XXXXXX") || die "cannot write to $1"
    # shellcheck disable=SC2064 # expand the name now
    trap "rm -rf -- ${work@Q}" EXIT
    say "downloading CUDA's runtime for arm64, about 1 GB"
    add_source "$work" arm64 "$source" || die "apt-get update failed: see above"
    download_debs "$work" nvidia-cuda-dev || die "apt-get download failed: see above"
    deb=$(echo "$work"/debs/*.deb)
    [[ $(dpkg-deb -f "$deb" Version) == "$(release_of "$1")".* ]] || die "$1 has another release of CUDA than ${deb##*/}"
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" ./usr/lib/aarch64-linux-gnu/libcudart_static.a || die "could not unpack ${deb##*/}: see above"
    mkdir -p "${library%/*}"
    mv "$work/usr/lib/aarch64-linux-gnu/libcudart_static.a" "$library"
    say "CUDA's runtime for arm64 is in ${library%/*}"
)

# arrange FROM DIR moves the files of the Debian packages to where DIR/bin/nvcc looks for them.
arrange() {
    local from=$1 dir=$2 debians=$1/lib/nvidia-cuda-toolkit part
    mkdir -p "$dir"/{bin,nvvm/bin} &&
        mv "$from/include" "$dir/include" &&
        mv "$from/lib/$(uname -m)-linux-gnu" "$dir/lib64" &&
        # gcc looks for its parts in ../lib and ../libexec.
        for part in lib libexec; do [[ ! -e $from/$part/gcc ]] || { mkdir "$dir/$part" && mv "$from/$part/gcc" "$dir/$part"; }; done &&
        rm "$from/bin/nvcc" && # a script that calls $debians/bin/nvcc
        mv "$from"/bin/* "$debians"/bin/{nvcc,crt} "$dir/bin" &&
        # gcc and g++ are scripts that choose a version nvcc supports.
        mv "$debians"/bin/{cicc,gcc,g++} "$dir/nvvm/bin" &&
        mv "$debians/libdevice" "$dir/nvvm/libdevice" &&
        mv "$from/share/doc/nvidia-cuda-dev/copyright" "$dir/EULA.txt" &&
        find "$dir" -xtype l -delete || return # links into other packages
    # shellcheck disable=SC2016 # nvcc fills these in
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
        'PATH += $(TOP)/nvvm/bin:$(_HERE_):' 'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' \
        'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"' >"$dir/bin/nvcc.profile"
}

apt() {
    # -qq prints only warnings and errors, on stderr.
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

available() { [[ $(LC_ALL=C apt-cache policy "$package") == *"Candidate: "[0-9]* ]]; }

# copied FILE N prints the source that apt calls FILE:N, the Nth line of a .list or the Nth
# stanza of a .sources, with its components replaced by $components.
copied() {
    case $1 in
    *.sources)
        awk -v n="$2" -v components="$components" '
            /^#/ { next }
            /^[ \t]*$/ { inside = 0; next }
            !inside { inside = 1; count++ }
            count != n { next }
            /^[^ \t]/ { replaced = 0 }
            tolower($0) ~ /^components:/ { print "Components: " components; replaced = 1 }
            tolower($0) ~ /^types:/ { print "Types: deb"; replaced = 1 }
            !replaced
            END { print "" }' "$1"
        ;;
    *)
        sed -E -n "$2"'s/^\s*(deb\s+(\[[^]]*\]\s+)?\S+\s+\S+)\s.*/\1 '"$components"'/p' "$1"
        ;;
    esac
}

add_components() {
    local components='' component entry parts format file
    # shellcheck disable=SC2016 # apt-get fills these in
    for component in contrib non-free; do
        [[ $(targets Debian '$(COMPONENT)' "Component: $component") ]] || components+=" $component"
    done
    components=${components# }
    [[ $components ]] || die "Debian has no $package for this machine: $elsewhere"

    local -A additions=()
    # shellcheck disable=SC2016
    while read -r entry; do
        file=${entry%:*}
        format=${file##*.}
        additions[$format]+=$(copied "$file" "${entry##*:}")$'\n\n'
    done < <(targets Debian '$(SOURCESENTRY)' 'Component: main')
    ((${#additions[@]})) || die "apt has no source of Debian: $elsewhere"

    eval "$(apt-config shell parts Dir::Etc::sourceparts/d)"
    for format in "${!additions[@]}"; do
        file=${parts%/}/cuda-contrib.$format
        say "adding \"$components\" in $file"
        printf '%s' "${additions[$format]}" | "${root[@]}" tee "$file" >/dev/null
    done
}

case ${1-none} in
-h | --help) usage; exit ;;
-* | '') usage >&2; exit 2 ;;
esac
[[ $# -lt 2 || "$*" == "$1 arm64" ]] || { usage >&2; exit 2; }
if (($#)); then
    dir=$(realpath -m -- "$1")
    if [[ -x $dir/bin/nvcc ]]; then say "$dir/bin/nvcc already exists"; else unpack "$dir"; fi
    (($# == 1)) || add_arm64 "$dir"
    exit
fi
if nvcc=$(type -P nvcc); then
    say "$nvcc already exists"
    exit 0
fi
type -P apt-get >/dev/null || die "apt-get is missing: $elsewhere"
root=()
if ((EUID != 0)); then
    type -P sudo >/dev/null || die "run this as root, or install sudo"
    root=(sudo)
fi
apt update || die "apt-get update failed: see above"
if ! available; then
    add_components
    apt update || die "apt-get update failed with the added components: see above"
    available || die "Debian has no $package for this machine: $elsewhere"
fi
say "installing $package, about 1.6 GB"
apt install -y --no-install-recommends "$package" "$compiler" || die "apt-get could not install $package: see above"
type -P nvcc >/dev/null || die "$package is installed, but nvcc is not on PATH"
