#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages of a set (build, test, fuzz, bench-readers, kernels) when one is missing; as an ordinary user by sudo.
# Knows Debian and Ubuntu; elsewhere it says what is needed and goes on. Source: apt-get(8), dpkg-query(1).
# usage: system-packages.sh build|test|fuzz|bench-readers|kernels
set -eu

here=$(dirname "$0")
case $1 in
	# libbpf-dev brings libelf and zlib; its headers and clang's BPF target need libc6-dev's asm/types.h.
	build) packages="ca-certificates clang gcc libbpf-dev libc6-dev libpcre2-dev make python3 python3-dev python3-venv" ;;
	# strace and bpftool are oracles; the others are the ordinary programs that are recorded beside strace, and the linter.
	test)
		# Ubuntu's chromium is a snap, which tests cannot start: there the page of VictoriaLogs is not looked at.
		bpftool="bpftool chromium"
		! grep -qs '^ID=ubuntu' /etc/os-release || bpftool="linux-tools-common linux-tools-generic"
		packages="$bpftool curl git perl procps shellcheck sqlite3 strace systemd tar util-linux"
		;;
	# libFuzzer and the sanitizers' run times of the clang that is there; the build set brings clang.
	fuzz)
		version=$(clang -dumpversion 2>/dev/null || true)
		packages="libclang-rt-${version%%.*}-dev"
		[ -n "$version" ] || packages="clang"
		;;
	bench-readers) packages=python3-bpfcc ;; # a contender
	# Guests of scripts/test_kernels.py; the keyring holds the keys of Debian's other releases too.
	kernels) packages="busybox-static debian-archive-keyring qemu-system-x86" ;;
	*) echo "usage: system-packages.sh build|test|fuzz|bench-readers|kernels" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
	echo "This host has no apt: otel-perfbuf needs what Debian calls $packages; going on with what is there." >&2
	exit 0
fi

missing=
for package in $packages; do
	state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "Installing system packages needs root and there is no sudo: as root, run apt-get install$missing" >&2
		exit 1
	fi
	sudo=sudo
	sudo -v # asks for the password here, where it can be seen
fi
# An index that is a day old or missing names package files that are gone from the mirror.
# shellcheck disable=SC2086 # $sudo and $missing are lists of words
"$here/step.sh" "apt-$1" "Installing system packages:$missing" \
	$sudo sh -c 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"' sh $missing
