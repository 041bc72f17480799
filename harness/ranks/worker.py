"""The process of one rank: waits for tasks, runs them, reports each one.

Started by :class:`harness.ranks.pool.RankPool`. A task is an importable name of
``function(payload, context)``; its return value, which must pickle, or the exception it raised is
sent back.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

# Its functions have the default group of the moment of their import as default argument, which
# would keep the group's connections open. Here there is none yet.
import torch.distributed.nn  # noqa: F401

from harness.importing import load
from harness.out_of_memory import is_out_of_memory
from harness.ranks.context import RankContext
from harness.ranks.messages import pack, send
from harness.ranks.pool import STACKS_SIGNAL

_PARENT_POLL_SECONDS = 0.5


def main() -> None:
    """Run the rank until it is told to stop or its parent is gone."""
    gc.freeze()  # what importing made is here for good; no collection need look at it
    arguments = _parse_arguments()
    _exit_with_parent(arguments.parent)
    folder = Path(arguments.folder)
    stacks = open(folder / f"stacks-{arguments.rank}", "w")
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    torch.set_num_threads(1)
    connection = Connection(arguments.fd)
    context = RankContext(arguments.rank, arguments.size, folder, arguments.backend)
    context.join(0)
    send(connection, ("ready", None))
    status = _serve(connection, context)
    sys.stdout.flush()
    sys.stderr.flush()
    # A rank that ends by itself may abort in a C++ destructor; nothing is left to clean up.
    os._exit(status)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="harness.ranks.worker")
    for name in ("rank", "size", "fd", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("folder", "backend"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def _exit_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _serve(connection: Connection, context: RankContext) -> int:
    """Run tasks until told to stop; return the exit status of this process."""
    try:
        while True:
            kind, body = connection.recv()
            if kind == "stop":
                break
            if kind == "join":
                context.join(body)
                send(connection, ("ready", None))
            else:
                task, payload = body
                connection.send_bytes(_run(task, payload, context))
    except EOFError:
        pass
    except SystemExit as end:
        # A task that exits ends its rank; the log says where.
        traceback.print_exc()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    context.leave()
    return 0


def _run(task: str, payload: Any, context: RankContext) -> bytes:
    try:
        value = load(task)(payload, context)
        return pack(("returned", {"value": value, "loss": context.loss}))
    except Exception as error:
        at = time.monotonic()
        body: dict[str, Any] = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "at": at,
        }
    # Out of the handler nothing holds the frames of the task, and with them its process group.
    context.unfit |= is_out_of_memory(body["error"])
    context.abandon_group()
    return pack(("raised", {**body, "loss": context.loss}))


if __name__ == "__main__":
    main()
