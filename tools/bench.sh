#!/usr/bin/env bash
# Compares the benchmarks of this working tree with those of an earlier commit, by benchstat:
#
#   tools/bench.sh [BASE]    BASE is a commit; the default is the last tag, or else HEAD~1
#
# These variables choose what runs:
#
#   PACKAGES  the packages, ./allocator unless set
#   BENCH     which benchmarks, as go test -bench takes it; all unless set
#   COUNT     runs of each, in which the two take turns: 6 unless set, fewer cannot show a difference
#   GOFLAGS   flags of go test, such as -tags=cuda after make kernels

set -euo pipefail

case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# -le 1 && ${1-} != -* ]] || { echo "usage: ${0##*/} [BASE]" >&2; exit 2; }
cd "$(dirname "$0")/.."
base=${1:-$(git describe --tags --abbrev=0 2>/dev/null || echo HEAD~1)}
base=$(git rev-parse --verify --quiet "$base^{commit}") || { echo "bench.sh: no commit ${1:-HEAD~1}" >&2; exit 1; }
read -ra packages <<<"${PACKAGES:-./allocator}"
folder=$(mktemp -d)
finish() {
    git worktree remove --force "$folder/base" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT
git worktree add --quiet --detach "$folder/base" "$base"

# benchmark DIR FILE runs the benchmarks of the tree DIR once, and appends what they print to FILE.
benchmark() {
    (cd "$1" && go test -run '^$' -bench "${BENCH:-.}" -benchmem -timeout 1h "${packages[@]}") >>"$folder/$2" ||
        { tail "$folder/$2" >&2; exit 1; }
}

echo "$(git log -1 --format='%h %s' "$base") against this tree, ${COUNT:-6} runs each"
for ((i = 1; i <= ${COUNT:-6}; i++)); do
    benchmark "$folder/base" before
    benchmark . after
    echo "run $i of ${COUNT:-6}: $SECONDS s"
done
(cd "$folder" && go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da before after)
