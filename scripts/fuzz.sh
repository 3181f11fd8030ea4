#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzzes what parses untrusted bytes in C, with the address and undefined-behaviour sanitizers; a finding ends it, and
# its input stays in .cache/fuzz. usage: fuzz.sh  (FUZZ_SECONDS: in all, default 60; what was found is kept as corpus)
set -eu

out=.cache/fuzz
seconds=$((${FUZZ_SECONDS:-60} / 3))
mkdir -p "$out"
.venv/bin/python fuzz/seeds.py "$out/seeds"
# The core's own parts, as otel_perfbuf/_core/build.py takes them; once for all targets.
mkdir -p "$out/core"
rm -f "$out/core/"*.o
flags="-O1 -g -std=gnu11 -Wall -fsanitize=address,undefined -fno-sanitize-recover=undefined -Ibpf -Iotel_perfbuf/_core"
for part in otel_perfbuf/_core/[!_]*.c; do
	# shellcheck disable=SC2086 # a list of words
	"${CLANG:-clang}" $flags -fsanitize=fuzzer-no-link -c -o "$out/core/$(basename "$part" .c).o" "$part"
done
for target in rings decode otlp_scan; do
	# shellcheck disable=SC2086 # a list of words
	"${CLANG:-clang}" $flags -fsanitize=fuzzer -o "$out/$target" "fuzz/$target.c" "$out/core/"*.o -lpcre2-8
	mkdir -p "$out/$target.corpus"
	echo "fuzzing $target for $seconds s"
	"$out/$target" -max_total_time="$seconds" -max_len=8192 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix="$out/$target-" "$out/$target.corpus" "$out/seeds/$target" 2>"$out/$target.log" || {
		tail -40 "$out/$target.log" >&2
		exit 1
	}
	grep -E 'number_of_executed_units|new_units_added' "$out/$target.log" | sed "s/^stat::/$target: /"
done
