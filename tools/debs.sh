# shellcheck shell=bash
# Downloads packages of Debian and Ubuntu without root and without changing what apt knows. To be sourced.

# targets VENDOR FORMAT FILTER... asks apt about the sources of Debian or Ubuntu itself. apt reads every
# format of sources.
targets() {
    apt-get indextargets --format "$2" 'Created-By: Packages' "Origin: $1" "Label: $1" "${@:3}" | sort -u
}

# download_debs DIR ARCHITECTURE SOURCE PACKAGE... downloads packages for amd64 or arm64 from SOURCE, a line of a .list of
# apt, to DIR/debs. If that fails, the variable failed names the command of apt-get.
download_debs() {
    local dir=$1
    local options=(-qq -o Dir::State="$dir/apt" -o Dir::State::lists="$dir/apt/lists" -o Dir::State::status="$dir/apt/status"
        -o Dir::Cache="$dir/apt/cache" -o Dir::Etc="$dir/apt/etc" -o APT::Sandbox::User=root
        -o APT::Architecture="$2" -o APT::Architectures="$2")
    mkdir -p "$dir"/{apt/etc/preferences.d,apt/lists/partial,apt/cache/archives/partial,debs}
    : >"$dir/apt/status"
    echo "$3" >"$dir/apt/etc/sources.list"
    failed=update
    apt-get "${options[@]}" update || return
    # shellcheck disable=SC2034 # for the caller
    failed=download
    (cd "$dir/debs" && apt-get "${options[@]}" download "${@:4}")
}
