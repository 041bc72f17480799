"""The model-level switch: the Hugging Face methods, and the same for any tree of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from wcn_ckpt.checkpointing.functions import (
    CheckpointFunction,
    checkpoint_function_from_kwargs,
    normalize_checkpoint_function,
)

if TYPE_CHECKING:
    _ModuleBase = nn.Module
else:
    _ModuleBase = object


def configure_gradient_checkpointing(
    module: nn.Module,
    enable: bool = True,
    gradient_checkpointing_func: CheckpointFunction | None = None,
    *,
    strict: bool = True,
) -> int:
    """Switch gradient checkpointing on or off for every boundary in a tree of modules.

    A boundary is any module with an attribute `gradient_checkpointing`, so blocks of other
    libraries that follow the Hugging Face convention are driven too.

    Args:
        module: root of the tree; it may itself be a boundary.
        enable: the new state of every boundary.
        gradient_checkpointing_func: checkpoint function to store on each boundary. A bare
            `torch.utils.checkpoint.checkpoint` becomes non-reentrant. None leaves the stored
            functions alone.
        strict: raise when the tree has no boundary.

    Returns:
        The number of boundaries found; a shared module counts once.

    Raises:
        TypeError: `module` is not an `nn.Module`, or the function is not callable.
        ValueError: the function is torch's reentrant checkpoint, or no boundary was found and
            `strict` is true. Nothing is changed in either case.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"configure_gradient_checkpointing needs an nn.Module, got {module!r} of type "
            f"{type(module).__name__}."
        )
    if gradient_checkpointing_func is not None:
        gradient_checkpointing_func = normalize_checkpoint_function(gradient_checkpointing_func)
    boundaries = _boundaries(module)
    if not boundaries and strict:
        raise ValueError(
            f"{type(module).__name__} has no gradient-checkpointing boundary: none of its modules "
            "has an attribute `gradient_checkpointing`. Derive the blocks to recompute from "
            "GradientCheckpointingMixin, or pass strict=False if that is expected."
        )
    for boundary in boundaries:
        if gradient_checkpointing_func is not None:
            boundary._gradient_checkpointing_func = gradient_checkpointing_func
        boundary.gradient_checkpointing = bool(enable)
    return len(boundaries)


def _boundaries(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if hasattr(m, "gradient_checkpointing")]


class GradientCheckpointingModelMixin(_ModuleBase):
    """Hugging Face's gradient-checkpointing methods for a model that contains boundaries.

    Put it before `nn.Module` in the bases. It holds no parameter and no buffer, and enabling adds
    no `state_dict` key::

        class Model(GradientCheckpointingModelMixin, nn.Module): ...

        model.gradient_checkpointing_enable()
    """

    supports_gradient_checkpointing = True

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Enable every boundary of this model.

        Args:
            gradient_checkpointing_kwargs: keywords for `torch.utils.checkpoint.checkpoint`
                (`preserve_rng_state`, `context_fn`, `determinism_check`, `early_stop`, ...).
                `use_reentrant` defaults to False. A call without them resets earlier ones.

        Raises:
            TypeError: the kwargs are not a mapping.
            ValueError: a keyword is unknown, `use_reentrant` is true, or the model has no
                boundary. Nothing is changed then.
        """
        function = checkpoint_function_from_kwargs(gradient_checkpointing_kwargs)
        self._set_gradient_checkpointing(True, function)

    def gradient_checkpointing_disable(self) -> None:
        """Disable every boundary of this model; their checkpoint functions are kept.

        Raises:
            ValueError: the model has no boundary.
        """
        self._set_gradient_checkpointing(False)

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: Mapping[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Enable boundaries under the name that Transformers 5 and its Trainer call.

        Args:
            activation_checkpointing_kwargs: as in `gradient_checkpointing_enable`.
            every_n_layers: enable only each n-th boundary, in the order of `modules()`.
            offload: not supported.

        Raises:
            TypeError: the kwargs are not a mapping, or `every_n_layers` is not an int.
            ValueError: as in `gradient_checkpointing_enable`; `every_n_layers` is below 1; or
                `offload` is true.
        """
        if offload:
            raise ValueError(
                f"Got offload={offload!r}: boundaries do not move activations to the host. Run the "
                "training step under torch.autograd.graph.save_on_cpu() instead."
            )
        function = checkpoint_function_from_kwargs(activation_checkpointing_kwargs)
        self._set_gradient_checkpointing(True, function, every_n_layers)

    def activation_checkpointing_disable(self) -> None:
        """Disable every boundary under the name that Transformers 5 calls.

        Raises:
            ValueError: the model has no boundary.
        """
        self._set_gradient_checkpointing(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether any boundary of this model is enabled."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    @property
    def is_activation_checkpointing(self) -> bool:
        """`is_gradient_checkpointing` under its Transformers 5 name."""
        return self.is_gradient_checkpointing

    @property
    def use_checkpoint(self) -> bool:
        """Whether any boundary is enabled; assigning switches all of them.

        Assigning on a model that has no boundary (yet) does nothing.
        """
        return self.is_gradient_checkpointing

    @use_checkpoint.setter
    def use_checkpoint(self, enable: bool) -> None:
        configure_gradient_checkpointing(self, enable, strict=False)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: CheckpointFunction | None = None,
        every_n_layers: int = 1,
    ) -> None:
        """Switch all boundaries, or each n-th one, with the signature Transformers calls."""
        if not isinstance(every_n_layers, int) or isinstance(every_n_layers, bool):
            raise TypeError(f"every_n_layers must be an int, got {every_n_layers!r}.")
        if every_n_layers < 1:
            raise ValueError(f"every_n_layers must be at least 1, got {every_n_layers!r}.")
        configure_gradient_checkpointing(self, enable, gradient_checkpointing_func)
        if every_n_layers > 1:
            for index, boundary in enumerate(_boundaries(self)):
                boundary.gradient_checkpointing = bool(enable) and index % every_n_layers == 0
