#!/usr/bin/env bash
# Usage: tools/model.sh [ENTRIES] [WRITES]
#
# Checks the model of a cluster's shared log (tests/simulation/cluster.pml) exhaustively with Spin: every
# order of events of three nodes, for logs of up to so many entries. Installs Debian's spin if it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

entries=${1:-4} writes=${2:-2}
model=$PWD/tests/simulation/cluster.pml

say() { printf 'model: %s\n' "$*" >&2; }

if ! command -v spin >/dev/null && [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    say "installing spin"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends spin gcc libc6-dev; } >/dev/null || true
fi
if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
    say "spin and gcc are needed; on Debian: apt-get install spin gcc"
    exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$model" "$folder/cluster.pml"
cd "$folder"
spin -a -DENTRIES="$entries" -DWRITES="$writes" cluster.pml
gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c
./pan -m1000000 >found.txt 2>&1 || true
grep -E 'errors:|states, stored|elapsed' found.txt || true
if ! grep -q 'errors: 0' found.txt || grep -qE 'Search not completed|max search depth' found.txt; then
    say "the model does not hold, or was not checked to its end:"
    grep -vE '^Depth=' found.txt | head -20
    if [[ -f cluster.pml.trail ]]; then
        spin -t -p -DENTRIES="$entries" -DWRITES="$writes" cluster.pml | tail -60
    fi
    exit 1
fi
say "3 nodes, $entries entries, $writes writes: every order of events holds"
