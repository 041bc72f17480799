"""Stages of blocks at one resolution each, with a resampling block between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules.checks import check_count
from wcn_ckpt.nn.modules.errors import UnknownNameError

BlockRegistry = Mapping[str, Callable[..., nn.Module]]


class _Stages(nn.ModuleList):
    """One list of blocks per stage; all but the last end with a resampling block."""

    def __init__(
        self,
        model_channels: Sequence[int],
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        resample_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        block_registry: BlockRegistry,
        resample_kwargs: Mapping[str, Any],
        resample_name: str,
    ) -> None:
        stages = len(model_channels)
        for name, values, count in (
            ("model_channels", model_channels, max(stages, 1)),
            ("num_blocks", num_blocks, stages),
            ("block_type", block_type, stages),
            ("block_args", block_args, stages),
            (resample_name, resample_type, stages - 1),
        ):
            if len(values) != count:
                raise ValueError(
                    f"{name} needs {count} entries for {stages} stages, got {len(values)}: "
                    f"{list(values)}"
                )
        for count in num_blocks:
            check_count(count, "every entry of num_blocks")
        super().__init__()
        for stage, (channels, count) in enumerate(zip(model_channels, num_blocks, strict=True)):
            make = _look_up(block_registry, block_type[stage])
            blocks = [make(channels, **block_args[stage]) for _ in range(count)]
            if stage + 1 < stages:
                resample = _look_up(block_registry, resample_type[stage])
                following = model_channels[stage + 1]
                blocks.append(resample(channels, following, **block_args[stage], **resample_kwargs))
            self.append(nn.ModuleList(blocks))

    def _stage(self, index: int) -> tuple[list[nn.Module], nn.Module | None]:
        """Return the blocks of a stage and its resampling block, if it has one."""
        blocks = list(self[index].children())
        return (blocks, None) if index + 1 == len(self) else (blocks[:-1], blocks[-1])


class SparseUNetEncoderStages(_Stages):
    """Stages on the way to coarser grids; the keys are `{stage}.{block}`.

    Args:
        model_channels: channels of each stage.
        num_blocks: blocks of each stage, without the resampling one; 0 is allowed.
        block_type: name of the block of each stage, called as `block(channels, **args)`.
        down_block_type: name of the block after each stage but the last, called as
            `block(channels, next_channels, **args)`.
        block_args: keyword arguments of each stage, for both its kinds of blocks.
        block_registry: block classes by name.
        down_block_kwargs: further keyword arguments of the resampling blocks.

    Raises:
        KeyError: a name is not in the registry; also a ValueError.
        TypeError: a block does not take an argument.
        ValueError: numbers of stages differ, or a block refuses its arguments.
    """

    def __init__(
        self,
        model_channels: Sequence[int],
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        down_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        block_registry: BlockRegistry,
        down_block_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """See the class."""
        super().__init__(
            model_channels,
            num_blocks,
            block_type,
            down_block_type,
            block_args,
            block_registry,
            down_block_kwargs or {},
            "down_block_type",
        )

    def run(self, x: Voxels) -> Voxels:
        """Run all stages."""
        for index in range(len(self)):
            blocks, down = self._stage(index)
            for block in blocks:
                x = block(x)
            if down is not None:
                x = down(x)
        return x


class SparseUNetDecoderStages(_Stages):
    """Stages on the way to finer grids; the keys are `{stage}.{block}`.

    Args:
        model_channels: channels of each stage.
        num_blocks: blocks of each stage, without the resampling one; 0 is allowed.
        block_type: name of the block of each stage, called as `block(channels, **args)`.
        up_block_type: name of the block after each stage but the last, called as
            `block(channels, next_channels, **args)`.
        block_args: keyword arguments of each stage, for both its kinds of blocks.
        block_registry: block classes by name.
        up_block_kwargs: further keyword arguments of the resampling blocks.

    Raises:
        KeyError: a name is not in the registry; also a ValueError.
        TypeError: a block does not take an argument.
        ValueError: numbers of stages differ, or a block refuses its arguments.
    """

    def __init__(
        self,
        model_channels: Sequence[int],
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        up_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        block_registry: BlockRegistry,
        up_block_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """See the class."""
        super().__init__(
            model_channels,
            num_blocks,
            block_type,
            up_block_type,
            block_args,
            block_registry,
            up_block_kwargs or {},
            "up_block_type",
        )

    def run(
        self,
        x: Voxels,
        guide_subs: Sequence[Voxels] | None = None,
        return_subs: bool = False,
        stop_before_stage: int | None = None,
    ) -> Voxels | tuple[Voxels, list[Voxels]]:
        """Run the stages.

        Args:
            x: voxels with the channels of the first stage.
            guide_subs: for each resampling block, which children exist.
            return_subs: whether the predictions of the resampling blocks are wanted too.
            stop_before_stage: number of a stage to stop before.

        Returns:
            Voxels; with `return_subs` also the predictions, one per resampling block that ran.

        Raises:
            ValueError: `guide_subs` comes with `return_subs` or has another length, or there is no
                such stage.
        """
        if guide_subs is not None and return_subs:
            raise ValueError(
                "guide_subs says which children exist and return_subs asks for predictions of "
                "them; pass one or the other"
            )
        out, subs = self.run_with_subs(x, guide_subs, stop_before_stage)
        return (out, subs) if return_subs else out

    def run_with_subs(
        self,
        x: Voxels,
        guide_subs: Sequence[Voxels] | None = None,
        stop_before_stage: int | None = None,
    ) -> tuple[Voxels, list[Voxels]]:
        """Run the stages; return voxels, and the predictions there were. See `run`."""
        self._check_run(guide_subs, stop_before_stage)
        subs: list[Voxels] = []
        for index in range(len(self) if stop_before_stage is None else stop_before_stage):
            blocks, up = self._stage(index)
            for block in blocks:
                x = block(x)
            if up is None:
                break
            out = up(x) if guide_subs is None else up(x, subdiv=guide_subs[index])
            if isinstance(out, tuple):
                x, predicted = out
                subs.append(predicted)
            else:
                x = out
        return x, subs

    def _check_run(self, guide_subs: Sequence[Voxels] | None, stop_before: int | None) -> None:
        if guide_subs is not None and len(guide_subs) != len(self) - 1:
            raise ValueError(
                f"guide_subs needs one entry for each of the {len(self) - 1} resampling blocks, "
                f"got {len(guide_subs)}"
            )
        if stop_before is not None and not 0 <= stop_before < len(self):
            raise ValueError(
                f"there are stages 0 to {len(self) - 1}, so it cannot stop before {stop_before}"
            )


def _look_up(registry: BlockRegistry, name: str) -> Callable[..., nn.Module]:
    if name not in registry:
        raise UnknownNameError(f"no block {name!r}; known are {sorted(registry)}")
    return registry[name]
