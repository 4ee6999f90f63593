# shellcheck shell=bash
# Downloads packages of Debian and Ubuntu without root and without changing what apt knows. To be sourced.

# targets VENDOR FORMAT FILTER... asks apt about the sources of Debian or Ubuntu itself. apt reads every
# format of sources.
targets() {
    apt-get indextargets --format "$2" 'Created-By: Packages' "Origin: $1" "Label: $1" "${@:3}" | sort -u
}

# add_source DIR ARCHITECTURE SOURCE fetches the lists of packages for amd64 or arm64 of SOURCE, a line of a .list of
# apt, into DIR.
add_source() {
    mkdir -p "$1"/{apt/etc/preferences.d,apt/lists/partial,apt/cache/archives/partial,debs}
    : >"$1/apt/status"
    echo "$2" >"$1/apt/architecture"
    echo "$3" >"$1/apt/etc/sources.list"
    in_source "$1" apt-get -o APT::Update::Error-Mode=any update
}

# in_source DIR COMMAND ARGUMENT... runs apt-get or apt-cache as if DIR's source and architecture were the only ones and
# no package were installed.
in_source() {
    local architecture
    architecture=$(<"$1/apt/architecture")
    "$2" -qq -o Dir::State="$1/apt" -o Dir::State::lists="$1/apt/lists" -o Dir::State::status="$1/apt/status" \
        -o Dir::Cache="$1/apt/cache" -o Dir::Etc="$1/apt/etc" -o APT::Sandbox::User=root \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" "${@:3}"
}

# download_debs DIR PACKAGE... downloads packages of DIR's source to DIR/debs. On a terminal, apt-get shows how far it is.
download_debs() {
    local quiet=2
    [[ ! -t 1 ]] || quiet=0
    (cd "$1/debs" && in_source "$1" apt-get -q=$quiet download "${@:2}")
}
