#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs make targets in a bare Debian, in a clean clone of HEAD, with nothing installed before but make.
# usage: fresh.sh SUITE [--user] TARGET...     SUITE: bookworm, trixie. --user: as an ordinary user, with sudo there.
#
# Facts: debootstrap's minbase takes about 25 s, so a tar of it is kept in ~/.cache/otel-perfbuf. BPF needs the host's
# /proc, /sys and /dev; they are bound in a mount namespace of its own, so they are gone with its last process however
# this script ends, and the removal below, outside of it, can never reach through them. The bare system is that
# namespace's root (pivot_root, no chroot), so that paths are there what they are on a real host.
set -eu

suite=$1
shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-perfbuf
case ${1-} in
	--clone)
		# The second half, as root: $2 is the clone that the first half made.
		clone=$2
		shift 2
		;;
	*)
		clone=$(mktemp -d "${TMPDIR:-/tmp}/otel-perfbuf-clone.XXXXXX")
		trap 'rm -rf "$clone"' EXIT
		git clone -q --no-hardlinks . "$clone/otel-perfbuf"
		if [ "$(id -u)" = 0 ]; then
			"$0" "$suite" --clone "$clone/otel-perfbuf" "$@"
		else
			sudo --preserve-env=XDG_CACHE_HOME,HOME "$0" "$suite" --clone "$clone/otel-perfbuf" "$@"
		fi
		exit
		;;
esac

user=root
if [ "${1-}" = --user ]; then
	user=stranger
	shift
fi

# The host's own mirrors, from either form of apt's sources.
uri() {
	cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
		sed -n -E 's/^(deb |URIs:).*(https?:\/\/[^] ]*\/'"$1"')\/?( .*)?$/\2/p' | head -n 1
}
mirror=$(uri debian)
security=$(uri debian-security)
mirror=${mirror:-http://deb.debian.org/debian}
security=${security:-http://deb.debian.org/debian-security}

say() { printf 'fresh %s (%s): %s\n' "$suite" "$user" "$1" >&2; }

base=$cache/$suite-minbase.tar
if [ ! -s "$base" ] || [ -n "$(find "$base" -mtime +30)" ]; then
	say "making the bare system"
	command -v debootstrap >/dev/null || {
		apt-get -q update && apt-get -q -y --no-install-recommends install debootstrap debian-archive-keyring
	} >&2
	mkdir -p "$cache"
	seed=$(mktemp -d /var/tmp/otel-perfbuf-base.XXXXXX)
	trap 'rm -rf --one-file-system "$seed"' EXIT
	if ! debootstrap --variant=minbase --include=make,ca-certificates "$suite" "$seed/root" "$mirror" >"$seed/log" 2>&1; then
		tail -n 20 "$seed/log" >&2
		echo "Making a bare $suite from $mirror failed; debootstrap's words are above." >&2
		exit 1
	fi
	tar -C "$seed/root" --exclude='./var/cache/apt/archives/*.deb' --exclude='./dev/*' -cf "$base.new" .
	mv "$base.new" "$base"
	rm -rf --one-file-system "$seed"
fi

root=$(mktemp -d /var/tmp/otel-perfbuf-fresh.XXXXXX)
# Ends what the commands left running: only processes of the namespace that was made below.
# shellcheck disable=SC2317,SC2329 # called by the trap
finish() {
	namespace=$(cat "$root/.mount-namespace" 2>/dev/null || true)
	if [ -n "$namespace" ] && [ "$namespace" != "$(readlink /proc/self/ns/mnt)" ]; then
		for link in /proc/[0-9]*/ns/mnt; do
			pid=${link#/proc/}
			[ "$(readlink "$link" 2>/dev/null)" != "$namespace" ] || kill -KILL "${pid%%/*}" 2>/dev/null || true
		done
	fi
	rm -rf --one-file-system "$root"
}
trap finish EXIT
trap 'exit 130' INT TERM
tar -C "$root" -xf "$base"

# What makes the network work on this host: names, mirrors, certificates, pip's configuration.
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
	[ ! -e "$file" ] || cp -L "$file" "$root$file"
done
for file in /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
	[ ! -e "$file" ] || cat "$file" >>"$root/etc/pip.conf"
done
printf 'deb %s %s main\n' "$mirror" "$suite" "$mirror" "$suite-updates" "$security" "$suite-security" >"$root/etc/apt/sources.list"
apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https)::' >"$root/etc/apt/apt.conf.d/99host" || true
echo 'debconf debconf/frontend select Noninteractive' | chroot "$root" debconf-set-selections

home=/root
if [ "$user" != root ]; then
	home=/home/$user
	chroot "$root" useradd --create-home --shell /bin/bash "$user"
	say "installing sudo"
	chroot "$root" sh -c 'apt-get -q update && apt-get -q -y --no-install-recommends install sudo' >"$root/var/log/sudo-install.log" 2>&1 ||
		{ cat "$root/var/log/sudo-install.log" >&2; exit 1; }
	echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
fi
cp -a "$clone" "$root$home/otel-perfbuf"
chroot "$root" chown -R "$user:" "$home/otel-perfbuf"

# Of the environment only what the network and the time-outs need; GOFLAGS and the like of a host with Go too.
set -- "$suite" "$root" "$user" "$home" "$@"
kept=$(env | grep -E '^([a-z]+_proxy|[A-Z]+_PROXY|PIP_[A-Z_]+|GO(PROXY|SUMDB|NOSUMDB|FLAGS)|SSL_CERT_(FILE|DIR)|CI)=' | grep -v '^PIP_FIND_LINKS=' || true)
export kept
# shellcheck disable=SC2016 # the inner shell expands these
unshare --mount --propagation private sh -euc '
	suite=$1 root=$2 user=$3 home=$4
	shift 4
	readlink /proc/self/ns/mnt >"$root/.mount-namespace"
	mount --bind "$root" "$root"
	mount --rbind /proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs tmpfs "$root/run"
	mount -t tmpfs tmpfs "$root/tmp"
	cd "$root"
	pivot_root . .
	umount -l .
	cd /
	IFS="
"
	for target; do
		began=$(date +%s)
		code=0
		# setpriv, not su: no PAM session, and the terminal stays as it is.
		# shellcheck disable=SC2086
		setpriv --reuid "$user" --regid "$user" --init-groups env -i $kept HOME="$home" USER="$user" LANG=C.UTF-8 \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			make -s -C "$home/otel-perfbuf" "$target" </dev/null || code=$?
		printf "fresh %s (%s): make %s ended with %s after %s s\n" "$suite" "$user" "$target" "$code" "$(($(date +%s) - began))" >&2
		[ "$code" = 0 ] || exit "$code"
	done
' sh "$@"
