#!/usr/bin/env bash
# Install this checkout and one torch of the CI matrix into the Python that is active.
# Usage: ci/install.sh oldest|stable|nightly|VERSION
# TORCH_NIGHTLY_INDEX: the --index-url that PyTorch's install page shows for nightly, pip and CPU.
# TORCH_CPU_INDEX: the one for stable, pip and CPU; without it pip takes its default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

which=${1:?say which torch: oldest, stable, nightly or a version}
extras=${EXTRAS:-lab,dev}

constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
grep -v '^torch==' ci/constraints.txt >"$constraints"

cpu=()
if [[ -n ${TORCH_CPU_INDEX:-} ]]; then
  cpu=(--extra-index-url "$TORCH_CPU_INDEX")
fi

case $which in
  oldest)
    version=$(sed -n 's/^dependencies = \["torch>=\([0-9.]*\)"\]$/\1/p' pyproject.toml)
    python -m pip install "torch==${version:?pyproject.toml has no lower bound of torch}.*" \
      "${cpu[@]}"
    ;;
  stable) python -m pip install torch "${cpu[@]}" ;;
  nightly)
    index=${TORCH_NIGHTLY_INDEX:?set it to the index of nightly wheels}
    python -m pip install --pre torch --index-url "$index"
    ;;
  *) python -m pip install "torch==$which" "${cpu[@]}" ;;
esac

python -m pip install --constraint "$constraints" hatchling editables
python -m pip install --constraint "$constraints" --no-build-isolation --editable ".[$extras]"
python -c 'import platform, torch; print("Python", platform.python_version(), "torch", torch.__version__)'
