"""Train every arrangement under the Trainer, on the ranks that torchrun started.

Run as `torchrun --nproc-per-node 2 -m tests.integrations.trainer_task FOLDER`; each rank leaves
`rank<n>.pt` in the folder: for each arrangement, the states and errors of its runs.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - before the group, which it would keep alive
from safetensors.torch import load_file
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.integrations.trainer_models import ARRANGEMENTS, Rows

STEPS = 20
BATCH = 4
NON_REENTRANT = {"use_reentrant": False}

Build = Callable[[], nn.Module]


class StopAt(TrainerCallback):  # type: ignore[misc]
    """Ends a run in the middle, with the learning rates of the whole one."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            control.should_training_stop = True


def train(
    build: Build,
    folder: Path,
    checkpointing: dict[str, Any],
    stop_at: int | None = None,
    resume_from: Path | None = None,
) -> nn.Module:
    """Train for `STEPS` steps, or until `stop_at`; save in the middle and at the end."""
    torch.manual_seed(0)
    model = build()
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=0.05,
        save_steps=STEPS // 2,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
        dataloader_num_workers=0,
        **checkpointing,
    )
    rows = Rows(STEPS * BATCH * dist.get_world_size())
    callbacks = [] if stop_at is None else [StopAt(stop_at)]
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    if stop_at is None:
        trainer.save_model()
    dist.barrier()  # rank 0 saves
    return model


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def runs_of(model: nn.Module) -> list[int]:
    return [len(layer.calls) for layer in model.layers]  # type: ignore[union-attr, arg-type]


def arrangement_runs(build: Build, folder: Path) -> dict[str, Any]:
    """All runs of one arrangement, by name."""
    on = {"gradient_checkpointing": True}
    with_kwargs = {**on, "gradient_checkpointing_kwargs": NON_REENTRANT}
    off, given = folder / "off", folder / "kwargs"
    out: dict[str, Any] = {"off": state_of(train(build, off, {}))}
    model = train(build, given, with_kwargs)
    out["kwargs"], out["calls"] = state_of(model), runs_of(model)
    out["reloaded"] = load_file(given / "model.safetensors")
    try:
        out["default"] = state_of(train(build, folder / "default", on))
    except ValueError as error:
        out["default"] = str(error)
    half = folder / "half"
    train(build, half, with_kwargs, stop_at=STEPS // 2)
    saved = half / f"checkpoint-{STEPS // 2}"
    try:
        out["resumed"] = state_of(train(build, half, with_kwargs, resume_from=saved))
    except RuntimeError as error:
        out["resumed"] = str(error)
    try:
        train(build, folder / "r", {**on, "gradient_checkpointing_kwargs": {"use_reentrant": True}})
        out["reentrant"] = None
    except ValueError as error:
        out["reentrant"] = str(error)
    return out


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {name: arrangement_runs(build, folder / name) for name, build in ARRANGEMENTS.items()}
    torch.save(found, folder / f"rank{dist.get_rank()}.pt")
    dist.barrier()
    gc.collect()  # a trainer holds DDP in a cycle, and DDP holds the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
