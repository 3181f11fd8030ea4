#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every system call beside strace, one line each (tests/decoders); the bar is a mean of 70 % and 95 % right in name
# and result. usage: decoders.sh [NAME...] [--different N] [--docs docs/decoders.md]
set -eu

run=
[ "$(id -u)" = 0 ] || run="sudo env PYTHONDONTWRITEBYTECODE=1"
# shellcheck disable=SC2086 # $run is a list of words
exec $run .venv/bin/python tests/decoders/run.py --at-least 70 "$@"
