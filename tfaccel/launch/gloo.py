"""What Horovod's workers need to find each other: its rendezvous server, on this host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tfaccel import horovod


@contextlib.contextmanager
def rendezvous(workers: int) -> Iterator[list[dict[str, str]]]:
    """Serves Horovod's rendezvous meanwhile; yields the variables of each worker.

    They are what horovodrun sets (horovod/runner/gloo_run.py, 0.28.1).

    Raises:
        UserError: If Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import SlotInfo
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise horovod.missing(error) from error
    slots = [
        SlotInfo(
            hostname="localhost",
            rank=rank,
            local_rank=rank,
            cross_rank=0,
            size=workers,
            local_size=workers,
            cross_size=1,
        )
        for rank in range(workers)
    ]
    server = RendezvousServer()
    port = server.start()
    server.init(slots)
    try:
        yield [_variables(slot, port) for slot in slots]
    finally:
        server.stop()


def _variables(slot, port: int) -> dict[str, str]:
    own = {
        "HOSTNAME": slot.hostname,
        "RANK": slot.rank,
        "SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_SIZE": slot.local_size,
        "CROSS_RANK": slot.cross_rank,
        "CROSS_SIZE": slot.cross_size,
        "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": "lo",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        # How long a worker waits for the others; Horovod's own 30 s are short where
        # importing TensorFlow is slow.
        "GLOO_TIMEOUT_SECONDS": os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 120),
    }
    return {f"HOROVOD_{name}": str(value) for name, value in own.items()}
