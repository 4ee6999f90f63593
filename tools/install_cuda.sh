#!/usr/bin/env bash
# Installs nvcc where it is missing, on Debian and its kin. Debian keeps it in
# components that few machines have configured: those are added beside the
# source that is configured, same mirror, same key. `--help` has the details.

set -euo pipefail

usage() {
    cat <<END
usage: ${0##*/} [DIR]

Installs nvcc and the CUDA toolkit that this release of Debian has, some 1.6 GB,
unless there is an nvcc on PATH.

  DIR   unpack a newer one instead, CUDA 12 of Debian $newer, into this folder, and
        change nothing else: nvcc is then DIR/bin/nvcc. Downloads some 1 GB, of which
        0.4 GB stay. Needs no root.
END
}

readonly package=nvidia-cuda-toolkit
# nvcc calls gcc, which needs its own version of g++; the package may bring
# another one.
readonly compiler=g++

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

elsewhere="install the CUDA toolkit, 11.8 or later, as your system or NVIDIA offers it, and put nvcc on PATH"

# The release whose toolkit is unpacked, and its packages that hold nvcc, the headers
# and the static runtime.
readonly newer=trixie
readonly parts_of_newer=(nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4)

# The libraries of mathematics, 3 GB of them.
readonly left_out=(--exclude='*cublas*' --exclude='*cufft*' --exclude='*curand*' --exclude='*cusolver*'
    --exclude='*cusparse*' --exclude='*libnpp*' --exclude='*nvjpeg*' --exclude='*libnvrtc*')

# unpack DIR puts the newer toolkit into DIR, laid out as NVIDIA does. It is made in a
# folder beside DIR and renamed once nvcc starts: what ends early leaves no half of it.
unpack() {
    local dir beside uri key deb tool options release
    dir=$(realpath -m -- "$1")
    [[ ! -x $dir/bin/nvcc ]] || { say "$dir/bin/nvcc is there already"; exit 0; }
    [[ ! -e $dir || -z $(ls -A -- "$dir") ]] || die "$dir holds something else: name a folder that is empty or not there yet"
    for tool in apt-get dpkg-deb tar; do
        type -P "$tool" >/dev/null || die "no $tool here: $elsewhere"
    done
    # shellcheck disable=SC2016 # apt-get fills this in
    uri=$(debian '$(REPO_URI)' 'Component: main' | head -n 1)
    [[ $uri ]] || die "apt knows no source of Debian's: $elsewhere"
    key=/usr/share/keyrings/debian-archive-keyring.gpg

    beside=$(mkdir -p -- "${dir%/*}/" && mktemp -d -- "$dir.XXXXXX") || die "cannot write beside $dir: name another folder"
    # shellcheck disable=SC2064 # the folder as it is now
    trap "rm -rf -- ${beside@Q}" EXIT
    mkdir -p "$beside"/{apt/etc/preferences.d,apt/lists/partial,apt/cache/archives/partial,debs,root}
    : >"$beside/apt/status"
    echo "deb [signed-by=$key] $uri $newer main contrib non-free" >"$beside/apt/etc/sources.list"
    options=(-qq -o Dir::State="$beside/apt" -o Dir::State::lists="$beside/apt/lists" -o Dir::State::status="$beside/apt/status"
        -o Dir::Cache="$beside/apt/cache" -o Dir::Etc="$beside/apt/etc" -o APT::Sandbox::User=root)
    say "downloading the packages of $newer's toolkit, some 1 GB"
    apt-get "${options[@]}" update || die "apt-get update failed: see above"
    (cd "$beside/debs" && apt-get "${options[@]}" download "${parts_of_newer[@]}") || die "apt-get could not download: see above"
    for deb in "$beside"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$beside/root" "${left_out[@]}" || die "could not unpack ${deb##*/}: see above"
        rm "$deb"
    done
    arrange "$beside/root/usr" "$beside/toolkit" || die "the packages of $newer's toolkit have another layout than this script knows: see above"
    release=$("$beside/toolkit/bin/nvcc" --version | sed -n 's/^Cuda compilation tools, release \([^,]*\),.*/CUDA \1/p') || release=''
    [[ $release ]] || die "the nvcc of $newer's toolkit does not start here: $elsewhere"
    mv -T -- "$beside/toolkit" "$dir"
    say "$release is in $dir"
}

# arrange FROM DIR moves what Debian spreads over FROM to where nvcc looks from DIR/bin.
arrange() {
    local from=$1 dir=$2 debians=$1/lib/nvidia-cuda-toolkit
    mkdir -p "$dir"/{bin,nvvm/bin} &&
        mv "$from/include" "$dir/include" &&
        mv "$from/lib/$(uname -m)-linux-gnu" "$dir/lib64" &&
        rm "$from/bin/nvcc" && # a script that calls the one below
        mv "$from"/bin/* "$debians"/bin/{nvcc,crt} "$dir/bin" &&
        # gcc and g++ are scripts that choose a version which nvcc takes.
        mv "$debians"/bin/{cicc,gcc,g++} "$dir/nvvm/bin" &&
        mv "$debians/libdevice" "$dir/nvvm/libdevice" &&
        find "$dir" -xtype l -delete || return # links into packages that are not here
    # shellcheck disable=SC2016 # nvcc fills these in
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
        'PATH += $(TOP)/nvvm/bin:$(_HERE_):' 'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' \
        'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"' >"$dir/bin/nvcc.profile"
}

apt() {
    # -qq leaves warnings and errors, on stderr.
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

available() { [[ $(LC_ALL=C apt-cache policy "$package") == *"Candidate: "[0-9]* ]]; }

# debian FORMAT FILTER... asks apt, which reads every way to write a source,
# about those that carry Debian itself, not what others build for it.
debian() {
    apt-get indextargets --format "$1" 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' "${@:2}" | sort -u
}

# beside FILE N prints the source that apt calls FILE:N, the Nth line of a
# .list or the Nth stanza of a .sources, with $components for its own.
beside() {
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
        [[ $(debian '$(COMPONENT)' "Component: $component") ]] || components+=" $component"
    done
    components=${components# }
    [[ $components ]] || die "Debian's sources have no $package for this machine: $elsewhere"

    local -A additions=()
    # shellcheck disable=SC2016
    while read -r entry; do
        file=${entry%:*}
        format=${file##*.}
        additions[$format]+=$(beside "$file" "${entry##*:}")$'\n\n'
    done < <(debian '$(SOURCESENTRY)' 'Component: main')
    ((${#additions[@]})) || die "apt knows no source of Debian's: $elsewhere"

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
(($# < 2)) || { usage >&2; exit 2; }
if (($#)); then
    unpack "$1"
    exit
fi
if nvcc=$(type -P nvcc); then
    say "$nvcc is there already"
    exit 0
fi
type -P apt-get >/dev/null || die "no apt-get here: $elsewhere"
root=()
if ((EUID != 0)); then
    type -P sudo >/dev/null || die "run this as root, or install sudo"
    root=(sudo)
fi
apt update || die "apt-get update failed: see above"
if ! available; then
    add_components
    apt update || die "apt-get update failed with the added components: see above"
    available || die "Debian's sources have no $package for this machine: $elsewhere"
fi
say "installing $package, some 1.6 GB"
apt install -y --no-install-recommends "$package" "$compiler" || die "apt-get could not install $package: see above"
type -P nvcc >/dev/null || die "$package is installed, yet nvcc is not on PATH"
