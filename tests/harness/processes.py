"""What a test sees of other processes: which there are, their groups and their open sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def alive(process: int) -> bool:
    """Tell whether a process runs; one that has ended and was not reaped does not."""
    return _state(process) not in ("", "Z", "X")


def of_group(groups: Iterable[int]) -> list[int]:
    """Return the running processes of some process groups."""
    wanted = {str(group) for group in groups}
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and _group(path) in wanted and alive(int(path.name))
    ]


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until a condition holds; tell whether it does in the end."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def listening_addresses(process: int) -> set[str]:
    """Return the addresses, as the kernel writes them, on which a process listens for TCP."""
    sockets = {_target(path) for path in Path(f"/proc/{process}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, state, inode = fields[1], fields[3], fields[9]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                found.add(address.partition(":")[0])
    return found


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _state(process: int) -> str:
    fields = _status(Path(f"/proc/{process}"))
    return fields[0] if fields else ""


def _group(path: Path) -> str:
    fields = _status(path)
    return fields[2] if fields else ""


def _status(path: Path) -> list[str]:
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
