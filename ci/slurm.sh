#!/usr/bin/env bash
# Run a suite on the nodes of a Slurm job, one torchrun agent a node.
#   sbatch --nodes=2 --gpus-per-node=8 ci/slurm.sh --suite nightly --device cuda
# As an array job, each task is a shard:
#   sbatch --nodes=1 --array=1-8 ci/slurm.sh --suite nightly
# RANKS_PER_NODE: ranks of a node; its GPUs by default, or 2 without a GPU.
# OUT: results folder; has to be on a file system that all nodes share.
# VENV: the virtual environment; .venv of the checkout by default.
#SBATCH --job-name=ckpt-lab
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

# shellcheck source=/dev/null
source "${VENV:-.venv}/bin/activate"

shard=()
name=${SLURM_JOB_ID:?run it with sbatch}
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
  shard=(--shard "$SLURM_ARRAY_TASK_ID/${SLURM_ARRAY_TASK_MAX:?}")
  name=$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID
fi
out=${OUT:-ckpt-lab-results}/slurm-$name
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ranks=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-2}}

export OMP_NUM_THREADS=1
srun --kill-on-bad-exit=0 torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" \
  --nproc-per-node "$ranks" \
  --max-restarts 20 \
  --rdzv-backend c10d \
  --rdzv-endpoint "$head:$((20000 + SLURM_JOB_ID % 20000))" \
  --rdzv-id "$name" \
  --rdzv-conf join_timeout=120 \
  -m harness run "${shard[@]}" --out "$out" --resume "$@" # a requeued job goes on
