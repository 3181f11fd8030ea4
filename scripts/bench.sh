#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The figures of the README: builds the loads, then runs each benchmark as root. usage: bench.sh
set -eu

out=.cache/bench
mkdir -p "$out"
gcc -O2 -Wall -Werror -o "$out/load" bench/load.c
clang -O2 -g -target bpf "-I/usr/include/$(gcc -print-multiarch)" -Wall -Werror -c -o "$out/empty.bpf.o" bench/empty.bpf.c
run=
[ "$(id -u)" = 0 ] || run="sudo env PYTHONDONTWRITEBYTECODE=1"
for bench in recording shared_ring encoding engine scan; do
	# shellcheck disable=SC2086 # $run is a list of words
	$run .venv/bin/python "bench/$bench.py"
done
