#!/usr/bin/env bash
# Plays a user's day in a terminal and a browser on a fresh clone: build, train, interrupt, resume,
# compare, report, predict, plot. Stops at the first step that fails.
#
#   tools/day.sh DIR    writes a picture of each screen and of each view of the report to DIR
#
# Needs Go, git, make, gcc, tmux and Chromium. Trains on the CPU and takes two minutes on two cores.

set -euo pipefail

readonly columns=110 rows=36 patience=300 # patience: seconds

case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# == 1 && $1 != -* ]] || { echo "usage: ${0##*/} DIR" >&2; exit 2; }
mkdir -p "$1"
pictures=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
home=$(mktemp -d)
readonly pictures home session="day-$$"

finish() {
    tmux kill-session -t "$session" 2>/dev/null || true
    rm -rf "$home"
}
trap finish EXIT

look() { tmux capture-pane -p -t "$session"; }

# printed prints what begin's command has printed, also what the screen no longer shows.
printed() { tmux capture-pane -p -S - -t "$session"; }

fail() {
    printf 'day: %s\n' "$*" >&2
    look >&2 2>/dev/null || true
    exit 1
}

# browse WIDTHxHEIGHT PAGE NAME OPTION... writes a browser's view of a page to NAME.png.
browse() {
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$home/browser" \
        --window-size="${1/x/,}" "${@:4}" --screenshot="$pictures/$3.png" "file://$2" >"$home/browser.log" 2>&1 ||
        fail "no picture of $2: $(tail -n 1 "$home/browser.log")"
}

# picture NAME writes the screen of the terminal to NAME.png.
picture() {
    {
        echo '<!DOCTYPE html><meta charset="utf-8"><style>body{background:#1e1e1e;color:#ddd;margin:16px}'
        echo 'pre{font:14px/1.25 "DejaVu Sans Mono",monospace}</style><pre>'
        look | sed 's/&/\&amp;/g; s/</\&lt;/g'
    } >"$home/screen.html"
    browse 980x680 "$home/screen.html" "$1"
}

# enter COMMAND types a line at the prompt "[exit status] $ ".
enter() {
    tmux send-keys -t "$session" -l "$1"
    tmux send-keys -t "$session" Enter
}

# until_printed PATTERN waits for a line that matches PATTERN.
until_printed() {
    local end=$((SECONDS + patience))
    until printed | grep -qE -- "$1"; do
        ((SECONDS < end)) || fail "nothing that was printed matches: $1"
        sleep 0.1
    done
}

# ends STATUS waits until the command exits with STATUS.
ends() {
    local end=$((SECONDS + patience)) line
    while ((SECONDS < end)); do
        line=$(look | sed '/^ *$/d' | tail -n 1)
        case $line in
        "[$1] $") return ;;
        "["*"] $") fail "the exit status is not $1 but ${line%% *}" ;;
        esac
        sleep 0.1
    done
    fail "still running after $patience s"
}

# step NAME COMMAND PATTERN runs COMMAND on a clean screen: it must succeed and print PATTERN.
step() {
    begin "$2"
    ends 0
    until_printed "$3"
    picture "$1"
}

begin() {
    echo "day: $1"
    tmux send-keys -t "$session" -R
    tmux clear-history -t "$session"
    enter "clear; $1"
    sleep 0.5 # the previous prompt is cleared
}

commit=$(git rev-parse HEAD)
git clone -q . "$home/mlpool"
cd "$home/mlpool"
git checkout -q "$commit"
# Small enough for a short day, large enough to interrupt an epoch.
sed 's/^feat_dim = .*/feat_dim = 64/; s/^num_epochs = .*/num_epochs = 7/' configs/mnist_cpu.toml >configs/day.toml
tmux -f /dev/null new-session -d -s "$session" -x $columns -y $rows \
    "env -u ALLOCATOR_TYPE PS1='[\$?] \$ ' CUDA=0 bash --norc --noprofile"
ends 0

step 1-install 'make build CUDA=0' 'go build'
step 2-help 'build/train -help | head -n 34' 'usage: train'
step 3-check 'build/train -check -set train.bsz=128 configs/day.toml | head -n 20' '^bsz = 128'
step 4-train 'build/train configs/day.toml' 'run in logs/mnist_cpu/'

begin 'build/train -set log.log_dir=logs/short configs/day.toml'
until_printed '^epoch 3/7'
tmux send-keys -t "$session" C-c
ends 130
until_printed 'build/train -resume logs/short/'
picture 5-interrupted
step 6-resume 'build/train -resume logs/short/latest' 'run in logs/short/'
step 7-same 'cmp logs/short/train_losses.txt logs/mnist_cpu/train_losses.txt && cmp logs/{short,mnist_cpu}/latest/weights.safetensors && echo the same' '^the same'

tmux resize-window -t "$session" -x 40 -y $rows
begin 'build/train -set train.num_epochs=2 -set log.log_dir= configs/day.toml'
until_printed 'steps|%'
picture 8-narrow
ends 0
tmux resize-window -t "$session" -x $columns -y $rows

step 9-compare 'build/train -compare=custom,custom:slack=1/64,custom:bestfit,malloc -report report.html configs/day.toml' '^report in report.html'
browse 1100x1400 "$PWD/report.html" 10-report
browse 1100x1400 "$PWD/report.html" 11-report-dark --blink-settings=preferredColorScheme=0
browse 500x1400 "$PWD/report.html" 12-report-phone
step 13-report-later 'build/train -report later.html logs/mnist_cpu/latest logs/short/latest' '^report in later.html'
step 14-predict 'build/train -predict test logs/short/latest | tail -n 30' 'accuracy'
cp logs/short/latest/confusion.png "$pictures/15-confusion.png"
step 16-plot 'make plot' 'train_losses.png'
cp build/train_losses.png "$pictures/17-losses.png"
step 18-trace 'build/train -set train.num_epochs=1 -set allocator.trace=trace.csv configs/day.toml && go run ./tools/allocbench -quick -trace trace.csv -allocator tlsf,malloc -report trace.html' '^report in trace.html'
browse 1100x1400 "$PWD/trace.html" 19-report-of-a-trace
step 20-list 'build/train -list && make help' '^clean '
echo '<body style="font: 120px sans-serif">7' >"$home/digit.html"
browse 500x500 "$home/digit.html" 21-digit
cp "$pictures/21-digit.png" digit.png
step 22-digit 'build/train -predict digit.png logs/short/latest' '^prediction: '
step 23-go-alone 'go run ./cmd/train -check configs/mnist_cpu.toml' '^feat_dim'
echo "day: done in $SECONDS s; pictures in $pictures"
