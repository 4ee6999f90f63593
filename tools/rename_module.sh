#!/usr/bin/env bash
# Sets the module path of this working tree: in go.mod and in every import.
#
#   tools/rename_module.sh PATH    as in example.com/you/mlpool

set -euo pipefail
[[ ${1-} =~ ^[a-z0-9.-]+\.[a-z]+(/[A-Za-z0-9._~-]+)+$ && $# == 1 ]] ||
    { echo "usage: ${0##*/} PATH, as in example.com/you/mlpool" >&2; exit 2; }
cd "$(dirname "$0")/.."
old=$(sed -n 's/^module //p' go.mod)
sources() { find . \( -name .git -o -path ./build -o -path ./logs \) -prune -o -type f -name '*.go' -print0; }
# Import paths stand in quotes, also where a test or a generator has one.
sources | xargs -0 sed -i "s|\"${old//./\\.}/|\"$1/|g"
sed -i "s|^module .*|module $1|" go.mod
sources | xargs -0 gofmt -w
