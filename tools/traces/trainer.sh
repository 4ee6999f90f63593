#!/usr/bin/env bash
# Records the allocator requests of eight trainings of cmd/train again, into
# tools/traces/testdata/trainer. Needs only Go and takes seconds: it skips the
# operations, since no request depends on their results.

set -euo pipefail
case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# == 0 ]] || { echo "usage: ${0##*/}" >&2; exit 2; }
cd "$(dirname "$0")/../.."
go test -count=1 -run '^TestTrainings$' ./cmd/train/internal/run -record
