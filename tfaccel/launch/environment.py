"""What each worker is told: who the others are, and its share of GPUs and CPUs."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from tfaccel import cluster, host
from tfaccel.errors import UserError

# Below the range from which Linux takes ports for outgoing connections, so that no
# connection takes a worker's port between its choice and its use.
_PORTS = range(12_000, 32_000)


@dataclasses.dataclass(frozen=True)
class Worker:
    """One worker to start: its index among all, and the variables it gets."""

    index: int
    variables: Mapping[str, str]


def addresses(hosts: Sequence[str], per_host: int, port: int) -> list[str]:
    """Returns the address of each worker, host by host.

    Args:
        hosts: The hosts; none for this one alone.
        per_host: Workers on each.
        port: The first worker's on each host; 0 takes free ones, on this host alone.
    """
    if hosts:
        return [f"{name}:{port + place}" for name in hosts for place in range(per_host)]
    ports = range(port, port + per_host) if port else free_ports(per_host)
    return [f"127.0.0.1:{chosen}" for chosen in ports]


def workers(
    first: int, told: Sequence[Mapping[str, str]], gpu_shares: Sequence[Sequence[str]]
) -> list[Worker]:
    """Returns the workers of this host, each with its share of devices.

    Args:
        first: The first index on this host.
        told: What each is told of the others.
        gpu_shares: The GPUs of each; none leaves them alone.
    """
    cpus = str(max(1, host.cpu_count() // len(told)))
    started = time.strftime("%Y%m%d-%H%M%S")
    found = []
    for place, others in enumerate(told):
        own = {cluster.LAUNCHED: "1", cluster.STARTED: started}
        variables = {**own, **others, **_threads(cpus)}
        if gpu_shares:
            # -1: an empty list means "all" to some programs.
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_shares[place]) or "-1"
        found.append(Worker(first + place, variables))
    return found


def tf_configs(all_addresses: Sequence[str], first: int, count: int) -> list[dict[str, str]]:
    """Returns TF_CONFIG for each of this host's workers.

    Args:
        all_addresses: Those of all workers on all hosts.
        first: The first index on this host.
        count: How many workers this host has.
    """
    here = range(first, first + count)
    return [{"TF_CONFIG": cluster.tf_config(all_addresses, index)} for index in here]


def share_gpus(gpus: Sequence[str], workers: int, each: int | None) -> list[list[str]]:
    """Returns the GPUs of each worker, neighbours together.

    Args:
        gpus: Those of this host.
        workers: How many workers share them.
        each: GPUs a worker; None takes as many as there are for all.

    Raises:
        UserError: If there are not enough.

    Example:
        >>> share_gpus(["0", "1", "2", "3"], 2, None)
        [['0', '1'], ['2', '3']]
    """
    if each is None and not gpus:
        return []
    each = len(gpus) // workers if each is None else each
    if each * workers > len(gpus) or (gpus and each == 0 and workers > len(gpus)):
        raise UserError(
            f"received --workers={workers} with {max(each, 1)} GPU(s) for each, but this host "
            f"has {len(gpus)}: start fewer workers, or train on CPUs with --gpus_per_worker=0."
        )
    return [list(gpus[place * each : (place + 1) * each]) for place in range(workers)]


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """Returns the GPUs of this host, as CUDA_VISIBLE_DEVICES names them."""
    environment = os.environ if environment is None else environment
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        named = [name.strip() for name in chosen.split(",")]
        # CUDA ignores what follows the first name that is none, such as -1.
        ends = next((i for i, name in enumerate(named) if name in ("", "-1")), len(named))
        return named[:ends]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    # By their unique names: nvidia-smi and CUDA may number them differently.
    return re.findall(r"^GPU-\S+", done.stdout, re.MULTILINE)


def free_ports(count: int) -> list[int]:
    """Returns ports of this host that nobody listens on."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found


def _threads(cpus: str) -> dict[str, str]:
    """A worker's share of the CPUs, for tfaccel, TensorFlow and NumPy."""
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return {host.CPUS: cpus, **dict.fromkeys(names, cpus)}
