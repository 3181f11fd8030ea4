#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the BPF objects and the C extensions in place with .venv's Python; both are incremental.
set -eu

.venv/bin/python -W ignore setup.py -q build_bpf build_ext --inplace
