#!/usr/bin/env bash
# Installs nvcc where it is missing, on Debian and its kin. Debian keeps it in
# components that few machines have configured: those are added beside the
# source that is configured, same mirror, same key.
#
#   tools/install_cuda.sh        installs the system's own toolkit
#   tools/install_cuda.sh DIR    unpacks a newer one, Debian trixie's CUDA 12, into
#                                the folder DIR and changes nothing else: DIR/bin/nvcc

set -euo pipefail

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

# unpack DIR puts the newer toolkit into DIR, laid out as NVIDIA does.
unpack() {
    local dir=$1 state key uri deb
    [[ ! -x $dir/bin/nvcc ]] || { say "$dir/bin/nvcc is there already"; exit 0; }
    for tool in apt-get dpkg-deb tar; do
        type -P "$tool" >/dev/null || die "no $tool here: $elsewhere"
    done
    # shellcheck disable=SC2016 # apt-get fills these in
    uri=$(debian '$(REPO_URI)' 'Component: main' | head -n 1)
    [[ $uri ]] || die "apt knows no source of Debian's: $elsewhere"
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    state=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder as it is now
    trap "rm -rf '$state'" EXIT
    mkdir -p "$state"/{etc/preferences.d,lists/partial,cache/archives/partial,debs}
    : >"$state/status"
    echo "deb [signed-by=$key] $uri $newer main contrib non-free" >"$state/etc/sources.list"
    own=(-o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status"
        -o Dir::Cache="$state/cache" -o Dir::Etc="$state/etc" -o APT::Sandbox::User=root)
    say "downloading the packages of $newer's toolkit, some 1 GB"
    apt-get -qq "${own[@]}" update || die "apt-get update failed: see above"
    (cd "$state/debs" && apt-get -qq "${own[@]}" download "${parts_of_newer[@]}") || die "apt-get could not download: see above"
    mkdir -p "$state/root" "$dir"/{bin,nvvm/bin}
    for deb in "$state"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$state/root" "${left_out[@]}"
        rm "$deb"
    done
    arrange "$state/root/usr" "$dir"
    "$dir/bin/nvcc" --version >/dev/null || die "$dir/bin/nvcc does not start"
    say "$("$dir/bin/nvcc" --version | sed -n 's/^Cuda compilation tools, release \([^,]*\),.*/CUDA \1/p') is in $dir"
}

# arrange FROM DIR moves what Debian spreads over FROM to where nvcc looks from DIR/bin.
arrange() {
    local from=$1 dir=$2 debians=$1/lib/nvidia-cuda-toolkit
    mv "$from/include" "$dir/include"
    mv "$from/lib/$(uname -m)-linux-gnu" "$dir/lib64"
    rm -f "$from/bin/nvcc" # a script that calls the one below
    mv "$from"/bin/* "$dir/bin"
    mv "$debians/bin/cicc" "$dir/nvvm/bin"
    mv "$debians/libdevice" "$dir/nvvm/libdevice"
    mv "$debians"/bin/{nvcc,crt} "$dir/bin"
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
