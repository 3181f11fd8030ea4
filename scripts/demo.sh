#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job in one screen: a request fails, the service's own log does not tell why, its last system calls do.
# Only `record` runs as root (by sudo where needed); the service and its customer run as the caller.
set -eu

work=$(mktemp -d "${TMPDIR:-/tmp}/otel-perfbuf-demo.XXXXXX")
customer=
# shellcheck disable=SC2317,SC2329 # called by the trap
finish() {
	[ -z "$customer" ] || kill "$customer" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

root=
caller=
if [ "$(id -u)" != 0 ]; then
	root="sudo env PYTHONDONTWRITEBYTECODE=1"
	caller="--user $(id -un)"
	sudo -v # asks for the password before the customer starts to wait
fi

.venv/bin/python examples/checkout/customer.py "$work/port" &
customer=$!
# shellcheck disable=SC2086 # $root and $caller are lists of words
$root .venv/bin/otel-perfbuf record $caller --lines "${LINES_SHOWN:-20}" -- \
	.venv/bin/python examples/checkout/service.py --requests 1 --port-file "$work/port"
wait "$customer"
customer=
