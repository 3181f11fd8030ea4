#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes .venv with this package in editable form, its dependencies and an extra; the C parts are built by make, not here.
# usage: venv.sh [EXTRA]     (EXTRA: dev). PYTHON names the interpreter a new .venv is made from.
set -eu

extra=${1:+[$1]}
python=${PYTHON:-python3}
if ! .venv/bin/python -c '' 2>/dev/null; then
	if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		echo "Making .venv stopped: otel-perfbuf needs Python 3.11 or newer and $python is $("$python" -V 2>&1); set PYTHON=/path/to/python3." >&2
		exit 1
	fi
	rm -rf .venv
	"$python" -m venv .venv
fi
# The build's own requirements live in .venv too: rebuilding the C parts then needs no download and no new environment.
.venv/bin/python -m pip install -q --disable-pip-version-check "setuptools>=77" "cffi>=1.17,<3"
OTEL_PERFBUF_SDK_ONLY=1 .venv/bin/python -m pip install --disable-pip-version-check --no-build-isolation -e ".$extra"
