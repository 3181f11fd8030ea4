#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The unit tests over C parts built with AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the tree, so that
# the checkout's own modules stay as they are. An error of the sanitizers ends the run with their report.
# usage: asan.sh [PYTEST ARG...]
set -eu

root=$PWD
copy=$root/.cache/asan
mkdir -p "$copy"
# The copy keeps its build/ (objects are rebuilt by time stamp) and is otherwise made anew.
find "$copy" -mindepth 1 -maxdepth 1 -not -name build -exec rm -rf {} +
# shellcheck disable=SC2046 # a list of words: what there is of these
tar -cf - --exclude='*.so' --exclude=__pycache__ $(ls -d bpf config docs examples otel_perfbuf scripts tests setup.py pyproject.toml Makefile README.md CHANGELOG.md LICENSE) |
	tar -xf - -C "$copy"
cd "$copy"
mkdir -p .cache
OTEL_PERFBUF_SANITIZE=1 "$root/scripts/step.sh" asan-build 'Building the C core with sanitizers' \
	"$root/.venv/bin/python" -W ignore setup.py -q build_ext --inplace
preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# A test of speed measures the sanitizers here, one of linked libraries finds theirs. detect_leaks=0: the interpreter itself keeps memory at its end. log_path: pytest would swallow a report on stderr.
rm -f "$copy"/report.*
code=0
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$copy PYTHONMALLOC=malloc LD_PRELOAD=$preload \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:log_path="$copy/report" \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path="$copy/report" \
	"$root/.venv/bin/python" -m pytest -q -p no:cacheprovider --timeout 300 \
	--deselect tests/unit/test_records_plan.py::test_the_plan_is_built_quickly \
	--deselect tests/unit/test_packaging.py::test_the_image_has_the_libraries_that_are_linked tests/unit "$@" || code=$?
cat "$copy"/report.* >&2 2>/dev/null || true
exit "$code"
