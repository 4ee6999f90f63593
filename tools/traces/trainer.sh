#!/usr/bin/env bash
# Records again what eight trainings of cmd/train ask of the allocator, into
# testdata/trainer beside this script. Needs Go alone, and takes seconds: the
# operations are left out, since no request depends on their results.

set -euo pipefail
[[ $# == 0 ]] || { echo "usage: ${0##*/}" >&2; exit 2; }
cd "$(dirname "$0")/../.."
go test -count=1 -run '^TestTrainings$' ./cmd/train -record
