# SPDX-License-Identifier: Apache-2.0
# The one runner: each target does what it needs first, and doing it twice is cheap.
# Stamps and logs of finished steps are in .cache; `rm -rf .cache .venv build` starts from nothing.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .cache/stamp
THREAD ?= single
KERNEL_TESTS ?= core
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# What a rebuild of the C parts depends on; a new file counts too, since make reads the folders anew.
C_PARTS := setup.py $(wildcard bpf/*.[ch] bpf/Makefile otel_perfbuf/*/*.[ch] otel_perfbuf/*/build*.py)

.PHONY: build demo test lint format bench wheel test-fresh test-kernels test-asan fuzz bench-readers test-decoders clean help
.DEFAULT_GOAL := help

help:
	@echo 'make build       system packages, .venv, C core, BPF objects: .venv/bin/otel-perfbuf runs'
	@echo 'make demo        a failing request, and the system calls that explain it'
	@echo 'make test        every test, against the real kernel and a real Collector'
	@echo 'make test-kernels  the kernel tests on kernels 5.10 to the newest, under QEMU (KERNELS="5.10 7.3" for a few, KERNEL_TESTS=all for all tests, THREAD=multi for races)'
	@echo 'make lint        style, types, import directions'
	@echo 'make format      what lint asks of form, done'
	@echo 'make test-decoders  every system call with ordinary, odd and bad arguments, beside strace: one line a call'
	@echo 'make test-asan   the unit tests over a build with address and undefined-behaviour sanitizers'
	@echo 'make bench       what recording costs, beside ftrace'
	@echo 'make fuzz        what parses bytes in C, under the sanitizers, for FUZZ_SECONDS (60)'
	@echo 'make bench-readers  the ring readers beside libbpf, cilium/ebpf and bcc'
	@echo 'make wheel       dist/*.whl'
	@echo 'make test-fresh  make demo and make test in a bare Debian 12 and 13'

build: $(STAMP)/parts
	@:

demo: build
	@scripts/demo.sh

test: build $(STAMP)/dev $(STAMP)/system-test $(STAMP)/collector $(STAMP)/backends
	@scripts/test.sh

test-kernels: build $(STAMP)/dev $(STAMP)/system-test $(STAMP)/system-kernels
	@$(BIN)/python scripts/test_kernels.py --thread $(THREAD) --select $(KERNEL_TESTS) $(KERNELS)

lint: build $(STAMP)/dev $(STAMP)/system-test
	@scripts/lint.sh

format: $(STAMP)/dev
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/clang-format -i $$(find bpf otel_perfbuf tests bench -name '*.[ch]' -not -name vmlinux.h)

test-decoders: build $(STAMP)/dev $(STAMP)/system-test
	@scripts/decoders.sh

test-asan: build $(STAMP)/dev
	@scripts/asan.sh

bench: build $(STAMP)/dev
	@scripts/bench.sh

fuzz: build $(STAMP)/dev $(STAMP)/system-fuzz
	@scripts/fuzz.sh

bench-readers: build $(STAMP)/dev
	@scripts/bench-readers.sh

wheel: build
	@rm -rf dist build/lib* build/bdist*
	@scripts/step.sh wheel 'Building the wheel' $(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

test-fresh:
	@scripts/fresh.sh bookworm demo test
	@scripts/fresh.sh trixie --user demo
	@scripts/fresh.sh trixie test

clean:
	@rm -rf build dist .cache/stamp otel_perfbuf/bpf/objects otel_perfbuf/*/*.so

$(STAMP)/system-%: scripts/system-packages.sh
	@scripts/system-packages.sh $*
	@mkdir -p $(@D) && touch $@

$(STAMP)/venv: pyproject.toml scripts/venv.sh | $(STAMP)/system-build
	@PYTHON=$(PYTHON) scripts/step.sh venv 'Making .venv with the Python dependencies' scripts/venv.sh
	@mkdir -p $(@D) && touch $@

$(STAMP)/dev: $(STAMP)/venv
	@scripts/step.sh dev 'Adding the test and lint tools to .venv' scripts/venv.sh dev
	@touch $@

$(STAMP)/collector: $(wildcard tests/e2e/collector/* tests/e2e/fluent_peer/*) $(STAMP)/dev
	@scripts/step.sh collector 'Building a real OpenTelemetry Collector' $(BIN)/python tests/e2e/collector.py
	@touch $@

$(STAMP)/backends: tests/e2e/backends.py $(STAMP)/collector
	@scripts/step.sh backends 'Building VictoriaLogs and Jaeger' $(BIN)/python tests/e2e/backends.py
	@touch $@

$(STAMP)/parts: $(C_PARTS) $(STAMP)/venv
	@scripts/step.sh parts 'Building the C core and the BPF objects' scripts/build.sh
	@touch $@
