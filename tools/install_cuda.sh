#!/usr/bin/env bash
# Installs nvcc where it is missing, on Debian and its kin. Debian keeps it in
# components that few machines have configured: those are added beside the
# source that is configured, same mirror, same key.

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

apt update || die "apt-get update failed: see above"
if ! available; then
    add_components
    apt update || die "apt-get update failed with the added components: see above"
    available || die "Debian's sources have no $package for this machine: $elsewhere"
fi
say "installing $package, some 1.6 GB"
apt install -y --no-install-recommends "$package" "$compiler" || die "apt-get could not install $package: see above"
type -P nvcc >/dev/null || die "$package is installed, yet nvcc is not on PATH"
