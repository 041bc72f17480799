"""Which modules of a model become boundaries: named by a person, or proposed."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from harness.verification.inspected import Candidate, within
from wcn_ckpt.checkpointing.refusals import why_not_checkpointable

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_PARAMETRIZATIONS = "parametrizations"
"""Where ``torch.nn.utils.parametrize`` puts what computes a weight."""


def matching(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules that patterns name.

    Args:
        module: The model.
        patterns: Each the name of a class, with or without its module, or a pattern of the shell
            for paths, in which ``*`` stays within one part: ``layers.*``. An empty one, and ``.``,
            name the model itself.

    Returns:
        Path -> module; one inside another is there too if it is named.
    """
    return {
        name: child
        for name, child in module.named_modules()
        if any(_matches(name, child, pattern) for pattern in patterns)
    }


def candidates(module: nn.Module) -> list[Candidate]:
    """Propose boundaries: classes of blocks that a model has in a list, then the model itself.

    Args:
        module: The model.

    Returns:
        The outermost repeated blocks first. Classes of which an instance cannot be a boundary are
        left out, and single layers of torch where there are blocks.
    """
    kinds: dict[type[nn.Module], None] = {}
    for name, parent in module.named_modules():
        if not isinstance(parent, _CONTAINERS) or _PARAMETRIZATIONS in name.split("."):
            continue
        for child in parent.children():
            if any(True for _ in child.parameters()) and any(True for _ in child.children()):
                kinds[type(child)] = None
    groups = {
        kind: {name: child for name, child in module.named_modules() if type(child) is kind}
        for kind in kinds
    }
    found = [
        Candidate(kind.__name__, tuple(group))
        for kind, group in groups.items()
        if _outermost(list(group)) and not any(map(why_not_checkpointable, group.values()))
    ]
    found.sort(key=lambda candidate: (candidate.names[0].count("."), -len(candidate.names)))
    if why_not_checkpointable(module) is None:
        found.append(Candidate(".", ("",)))
    return found


def _matches(name: str, module: nn.Module, pattern: str) -> bool:
    if pattern in ("", "."):
        return name == ""
    for kind in type(module).__mro__[:-1]:
        if kind is nn.Module:
            break
        if pattern in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            return True
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _outermost(names: Sequence[str]) -> bool:
    return not any(within(name, names) for name in names)
