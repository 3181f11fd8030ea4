#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ring readers beside libbpf, cilium/ebpf and bcc, in one interleaved run as root.
# Without Go (or its module proxy) cilium/ebpf is left out, without Debian's python3-bpfcc bcc; the run says so.
# usage: bench-readers.sh [READERS.PY ARG...]
set -eu

out=$PWD/.cache/bench
mkdir -p "$out"
clang -O2 -g -target bpf "-I/usr/include/$(gcc -print-multiarch)" -Wall -Werror -c -o "$out/rings.bpf.o" tests/kernel/programs/rings.bpf.c
gcc -O2 -Wall -Werror -o "$out/readers_libbpf" bench/readers_libbpf.c -lbpf
gcc -O2 -Wall -Werror -o "$out/readers_fill" bench/readers_fill.c
if command -v go >/dev/null; then
	(cd bench/readers_cilium && go build -o "$out/readers_cilium" .) || echo 'cilium/ebpf does not build here' >&2
fi
scripts/system-packages.sh bench-readers || echo 'bcc cannot be installed here' >&2
run=
[ "$(id -u)" = 0 ] || run="sudo env PYTHONDONTWRITEBYTECODE=1"
# shellcheck disable=SC2086 # $run is a list of words
exec $run .venv/bin/python bench/readers.py "$@"
