#!/usr/bin/env bash
# Runs the commands of documents in a copy of the working tree, block by block, and stops at the
# first that fails:
#
#   tools/documents.sh [FILE...]    CONTRIBUTING.md and docs/*.md unless files are named
#
# A block that begins with ```sh is run. One that begins with ```sh skip: REASON is not, and its
# reason is printed. Needs Go, git, make and g++, but no GPU: what was built for the emulated one is
# used again.

set -euo pipefail

case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
(($#)) || set -- CONTRIBUTING.md docs/*.md
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# The times of files stay, so that make compiles only what is new.
tar -c --exclude=./logs --exclude=./build/cuda12 --exclude=./shared . | tar -x -C "$copy"
unset ALLOCATOR_TYPE CUDA EMULATE MAKEFLAGS

run=0 skipped=0
for document; do
    block='' reason='' inside=''
    [[ -f $document ]] || { echo "documents.sh: no file $document" >&2; exit 1; }
    while IFS= read -r line; do
        case $inside$line in # no line contains \n
        '```sh') inside=$'run\n' ;;
        '```sh skip: '*) inside=$'skip\n' reason=${line#*skip: } ;;
        '```sh'*) echo "documents.sh: $document: want \`\`\`sh or \`\`\`sh skip: REASON, not $line" >&2; exit 1 ;;
        $'run\n```')
            printf '\n%s\n' "$document"
            (cd "$copy" && bash -euvo pipefail -c "$block") </dev/null ||
                { echo "documents.sh: $document: this block failed" >&2; exit 1; }
            block='' inside='' run=$((run + 1))
            ;;
        $'skip\n```')
            printf '\n%s: not run: %s\n%s' "$document" "$reason" "$block"
            block='' inside='' skipped=$((skipped + 1))
            ;;
        $'run\n'* | $'skip\n'*) block+=$line$'\n' ;;
        esac
    done <"$document"
done
((run)) || { echo "documents.sh: no commands in $*" >&2; exit 1; }
echo "documents.sh: $run blocks run, $skipped not"
