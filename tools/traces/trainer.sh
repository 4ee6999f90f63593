#!/usr/bin/env bash
# Records again what eight trainings of cmd/train ask of the allocator, into
# testdata/trainer beside this script. Needs Go alone, and takes seconds: the
# operations are left out, since no request depends on their results.

set -euo pipefail
case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# == 0 ]] || { echo "usage: ${0##*/}" >&2; exit 2; }
cd "$(dirname "$0")/../.."
go test -count=1 -run '^TestTrainings$' ./cmd/train/internal/run -record
