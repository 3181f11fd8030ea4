#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one long step of the build: one line on stderr, everything else in .cache/NAME.log, printed when it fails.
# usage: step.sh NAME "What is being done" COMMAND [ARG...]
set -eu

name=$1 what=$2
shift 2
mkdir -p .cache
log=.cache/$name.log
printf '%s ...\n' "$what" >&2
if "$@" >"$log" 2>&1 </dev/null; then
	exit 0
else
	code=$?
fi
tail -n 60 "$log" >&2
printf '%s failed with exit code %s; the whole log is in %s\n' "$what" "$code" "$log" >&2
exit "$code"
