#!/usr/bin/env bash
# Usage: [VENV=.venv] [PYTHON=python3] tools/setup.sh [extra ...]
#
# Makes .venv, or the folder that VENV names, and installs Millstream in it, editable, with the
# extras named, at the versions of constraints.txt. What is already installed is left alone: each
# extra has a stamp in .venv/.stamps that holds the hash of what it was installed from, so a second
# call returns at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
wanted=(core "$@")
# The place is part of the hash: scripts inside .venv hold absolute paths, so a copy is made anew.
key=$({ cat constraints.txt pyproject.toml; pwd -P; } | sha256sum)
key=${key%% *}
missing=()

find_missing() {
    local name stamp
    missing=()
    for name in "${wanted[@]}"; do
        stamp=""
        [[ -r "$venv/.stamps/$name" ]] && read -r stamp <"$venv/.stamps/$name"
        [[ $stamp == "$key" ]] || missing+=("$name")
    done
}

say() { printf 'setup: %s\n' "$*" >&2; }

find_missing
[[ ${#missing[@]} -eq 0 ]] && exit 0

# Two targets started together share one .venv: the second waits here, then finds the stamps.
if command -v flock >/dev/null; then
    exec 9<pyproject.toml
    flock 9
    find_missing
    [[ ${#missing[@]} -eq 0 ]] && exit 0
fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "Python 3.11 or newer is needed; set PYTHON to one: make test PYTHON=python3.12"
    return 1
}

has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

# Debian splits ensurepip from Python, so a plain `python3 -m venv` can fail there.
make_venv() {
    local python=$1 version
    rm -rf "$venv"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv "$venv"; then
        has_pip && return
    fi
    if "$python" -m pip --version >/dev/null 2>&1; then
        say "no ensurepip here; taking pip from the system"
        rm -rf "$venv"
        if "$python" -m venv --without-pip "$venv" \
            && "$python" -m pip --python "$venv/bin/python" install --quiet pip; then
            has_pip && return
        fi
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        say "no ensurepip and no pip here; installing python$version-venv"
        rm -rf "$venv"
        apt-get update -qq >/dev/null || true
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "python$version-venv" >/dev/null && "$python" -m venv "$venv"; then
            has_pip && return
        fi
    fi
    rm -rf "$venv"
    say "cannot make a virtual environment with $python."
    say "Install its venv module and try again; on Debian: apt-get install python$version-venv"
    return 1
}

is_usable() {
    local place=""
    [[ -r "$venv/.stamps/place" ]] && read -r place <"$venv"/.stamps/place
    [[ $place == "$(pwd -P)" ]] && has_pip
}

if ! is_usable; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    make_venv "$python"
    # Python 3.11 puts setuptools beside pip: 10 MB that nothing here uses.
    "$venv/bin/python" -m pip uninstall --quiet --yes setuptools 2>/dev/null || true
    mkdir -p "$venv/.stamps"
    pwd -P >"$venv"/.stamps/place
fi

extras=$(printf '%s\n' "${missing[@]}" | grep -vx core | paste -sd, || true)
say "installing millstream${extras:+[$extras]}"
# Only what is used is compiled, when it is used: that keeps .venv small.
"$venv/bin/python" -B -m pip install --quiet --disable-pip-version-check --no-compile \
    --constraint constraints.txt --editable ".${extras:+[$extras]}"

find "$venv" -path '*/site-packages/pip/*' -name __pycache__ -prune -exec rm -rf {} +

# Clients before 2023 speak the Query protocol to SQS. No other package uses this botocore.
if [[ " ${missing[*]} " == *" sqs-dev "* ]]; then
    say "installing botocore 1.29 for tests of the Query protocol"
    rm -rf "$venv/botocore-1.29"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --no-deps --target "$venv/botocore-1.29" botocore==1.29.165 urllib3==1.26.20
fi

# The tests of pages drive the system's Chromium.
if [[ " ${missing[*]} " == *" browser "* ]] && ! command -v chromium >/dev/null; then
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        say "installing chromium"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends chromium; } >/dev/null || true
    fi
    command -v chromium >/dev/null || say "no chromium: tests of pages will be skipped"
fi

for name in "${missing[@]}"; do
    printf '%s\n' "$key" >"$venv/.stamps/$name"
done
