#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test. A skipped kernel or end-to-end test is a failure (tests/conftest.py); as an ordinary user those run by sudo.
# usage: test.sh [PYTEST ARG...]
set -eu

export PYTHONDONTWRITEBYTECODE=1
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# What every host has that systemd has started, and a bare root may lack.
for mounted in tracefs:/sys/kernel/tracing bpf:/sys/fs/bpf; do
	grep -qs " ${mounted#*:} ${mounted%%:*} " /proc/mounts || $sudo mount -t "${mounted%%:*}" "${mounted%%:*}" "${mounted#*:}" || true
done
if [ "$(id -u)" = 0 ]; then
	OTEL_PERFBUF_KERNEL_TESTS=1 exec .venv/bin/python -m pytest -q -p no:cacheprovider "$@"
fi
.venv/bin/python -m pytest -q -p no:cacheprovider tests/unit "$@"
exec sudo --preserve-env=PATH,HOME,PYTHONDONTWRITEBYTECODE OTEL_PERFBUF_KERNEL_TESTS=1 \
	.venv/bin/python -m pytest -q -p no:cacheprovider tests/kernel tests/e2e tests/scenarios "$@"
