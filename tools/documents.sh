#!/usr/bin/env bash
# Runs the commands of documents in a copy of the working tree, block by block, and stops at the
# first that does not end as it should:
#
#   tools/documents.sh [FILE...]    README.md, CONTRIBUTING.md and docs/*.md unless files are named
#
# The line that begins a block says what becomes of it:
#
#   ```sh               it is run, and must succeed
#   ```sh fails         it is run, and must fail
#   ```sh skip: REASON  it is not run, and REASON is printed
#
# Needs Go, git, make, gcc, g++, pkg-config and python3, but no GPU. It uses what was built for the emulated one.

set -euo pipefail

case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
(($#)) || set -- README.md CONTRIBUTING.md docs/*.md
copy=$(mktemp -d)
readonly copy fence='```'
trap 'rm -rf "$copy"' EXIT

fail() {
    printf 'documents.sh: %s\n' "$*" >&2
    exit 1
}

# The times of files stay, so that make compiles only what is new.
tar -c --exclude=./logs --exclude=./build/cuda12 --exclude=./shared . | tar -x -C "$copy"
unset ALLOCATOR_TYPE CUDA EMULATE MAKEFLAGS

# run FILE KIND COMMANDS runs a block. KIND is what follows "sh", with its space.
run() {
    printf '\n%s%s\n' "$1" "${2:+,$2}"
    case $2 in
    '' | ' fails') ;;
    ' skip: '*) printf '%s' "$3"; skipped=$((skipped + 1)); return ;;
    *) fail "$1: want a block of sh, \"sh fails\" or \"sh skip: REASON\", not \"sh$2\"" ;;
    esac
    local status=0
    (cd "$copy" && bash -euvo pipefail -c "$3") </dev/null || status=$?
    [[ $2 == " fails" ]] || ((status == 0)) || fail "$1: this block failed with status $status"
    [[ $2 != " fails" ]] || ((status)) || fail "$1: this block should fail"
    blocks=$((blocks + 1))
}

blocks=0 skipped=0
for document; do
    inside='' kind='' commands=''
    mapfile -t lines <"$document"
    for line in "${lines[@]}"; do
        if [[ $inside == sh && $line == "$fence" ]]; then
            run "$document" "$kind" "$commands"
            inside=''
        elif [[ $inside == sh ]]; then
            commands+=$line$'\n'
        elif [[ $inside ]]; then
            [[ $line != "$fence" ]] || inside=''
        elif [[ $line == "${fence}sh"* ]]; then
            inside=sh kind=${line#"${fence}sh"} commands=''
        elif [[ $line == "$fence"* ]]; then
            inside=other
        fi
    done
done
((blocks)) || fail "no commands in $*"
echo "documents.sh: $blocks blocks run, $skipped not"
