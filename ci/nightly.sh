#!/usr/bin/env bash
# Run the nightly suite on this machine, compare it with the night before, and write night.md.
# Usage: ci/nightly.sh [options of ckpt-lab run]
# NIGHTS: folder that keeps the nights; ckpt-lab-nights by default.
# PYTHON: python of the environment; .venv/bin/python by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
nights=${NIGHTS:-ckpt-lab-nights}
mkdir -p "$nights"

before=()
last=$(find "$nights" -mindepth 2 -maxdepth 2 -name night.md | sort | tail -n 1)
if [[ -n $last ]]; then
  before=(--before "$(dirname "$last")")
fi

tonight=$nights/$(date -u +%Y%m%d-%H%M%S)
status=0
"$python" -m harness run --suite nightly --out "$tonight" "$@" || status=$?
if [[ -f $tonight/run.json ]]; then
  "$python" -m ci.night "$tonight" "${before[@]}"
  echo "page: $tonight/night.md"
fi
exit "$status"
