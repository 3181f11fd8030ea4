#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Style and types of everything that is written here; each tool's own words say what is wrong. Goes on after a failure.
set -u

failed=
run() {
	what=$1
	shift
	"$@" || failed="$failed $what"
}

run ruff .venv/bin/ruff check --quiet .
run ruff-format .venv/bin/ruff format --check --quiet .
run mypy .venv/bin/mypy --no-error-summary
# shellcheck disable=SC2046 # our file names have no spaces
run clang-format .venv/bin/clang-format --dry-run -Werror $(find bpf otel_perfbuf tests bench fuzz -name '*.[ch]' -not -name vmlinux.h)
# shellcheck disable=SC2046
run shellcheck shellcheck .ci/run $(find scripts examples tests -name '*.sh')
run layout .venv/bin/python -m pytest -q -p no:cacheprovider tests/unit/test_layout.py
if [ -n "$failed" ]; then
	echo "make lint: failed:$failed" >&2
	exit 1
fi
