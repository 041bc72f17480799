#!/usr/bin/env bash
# Prove on one CUDA device what the CPU cannot: at most 6 minutes, all results in one folder.
# Usage: ci/gpu_check.sh [FOLDER]     (FOLDER, or $OUT, or gpu-check)
# PYTHON: python of the environment; .venv/bin/python if it is there, else python3.
# DEVICE=cpu rehearses the steps on a machine without CUDA; it proves nothing about CUDA.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

out=${1:-${OUT:-gpu-check}}
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
if [[ -z ${PYTHON:-} && -x .venv/bin/python ]]; then
  python=.venv/bin/python
fi
export OMP_NUM_THREADS=1

mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
if [[ $device == cuda ]] && ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
  echo "torch of $python finds no CUDA device; DEVICE=cpu rehearses the steps" >&2
  exit 2
fi
# A rank leaves much of a GPU idle: groups of one or two ranks run cases side by side.
groups=$(($(nproc) / 4))
groups=$((groups < 1 ? 1 : groups > 4 ? 4 : groups))
one_rank=(--ranks "$groups" --group-size 1)
two_ranks=(--ranks $((2 * groups)) --group-size 2 --backend gloo)
if [[ $device == cuda ]]; then
  one_rank+=(--backend nccl)
  nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
fi
"$python" -m torch.utils.collect_env >"$out/environment.txt" 2>&1 || true

worst=0
printf '| step | result | seconds |\n|---|---|---|\n' >"$out/summary.md"

# step NAME SECONDS COMMAND...: run it within its time, keep its output, note how it went.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 result=passed
  shift 2
  echo "== $name"
  timeout --signal=TERM --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  if ((status == 124 || status == 137)); then
    result="out of time ($limit s)"
  elif ((status != 0)); then
    result="failed ($status)"
  fi
  if ((status != 0)); then
    worst=1
    tail -n 15 "$out/$name.log"
  fi
  printf '| %s | %s | %d |\n' "$name" "$result" $((SECONDS - begin)) | tee -a "$out/summary.md"
}

lab() {
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$python" -m harness run --device "$device" --case-timeout 30 \
    --no-checklist --out "$out/$name" "$@"
}

# Sparse convolution with its CUDA backward, against the dense one.
mapfile -t files < <(grep -rl 'mark\.cuda' tests/nn tests/models)
step tests 60 "$python" -m pytest -q -p no:cacheprovider -m cuda "${files[@]}"
# The same in training steps under autocast; nccl with one rank.
half=bf16
if [[ $device == cuda ]]; then
  half=fp16,bf16
fi
lab convolution 40 "${one_rank[@]}" --subject basic --subject bottleneck-down --subject minkunet \
  --axis "autocast=$half" --axis wrapper=none,ddp --axis compile=off --axis steps=1
# Boundaries without state of their own: only the random numbers of dropout and drop path.
lab dropout 40 "${one_rank[@]}" --subject patch-attention --subject pre-norm \
  --subject stream-norm --axis dropout=0.2 --axis compile=off --axis steps=1
step families 40 "$python" -m ci.gpu_families "$out" --device "$device"
lab smoke 80 "${one_rank[@]}"
# Two ranks of a group share the GPU.
lab smoke-shared 80 "${two_ranks[@]}"

cat "$out/summary.md"
echo "results: $out"
exit "$worst"
