"""Starts several workers of one training on this host.

python -m tfaccel.launch --workers=2 -- --config=quickstart
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from absl import flags

from tfaccel import cli
from tfaccel.errors import UserError
from tfaccel.launch import environment, gloo, processes
from tfaccel.log import logger

USAGE = """Starts several workers of one training on this host, or this host's part of them.

    python -m tfaccel.launch --workers=2 -- --config=cifar10_resnet9
    python -m tfaccel.launch --workers=2 -- python my_training.py
    python -m tfaccel.launch --hosts=a,b --index=0 -- --config=cifar10_resnet9

What follows -- are arguments of tfaccel.train (or of --module), or a program with its own.
Each worker gets its share of the GPUs and CPUs, and TF_CONFIG. If one fails, all end."""

# The first port of each host, where hosts are named: TensorFlow's own examples use it.
_PORT = 2222


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    own, words = _split(argv)
    flag_values = _flags()
    if not cli.parse(flag_values, own, USAGE):
        return 0
    count = flag_values.workers
    hosts = [name.strip() for name in flag_values.hosts if name.strip()]
    _check(flag_values, hosts)
    gpus = environment.visible_gpus()
    shares = environment.share_gpus(gpus, count, flag_values.gpus_per_worker)
    command = processes.command_line(words, flag_values.module)
    first = flag_values.index * count if hosts else 0
    with contextlib.ExitStack() as stack:
        if flag_values.horovod:
            told = stack.enter_context(gloo.rendezvous(count))
        else:
            port = flag_values.port or (_PORT if hosts else 0)
            all_addresses = environment.addresses(hosts, count, port)
            told = environment.tf_configs(all_addresses, first, count)
        workers = environment.workers(first, told, shares)
        logger.info("%s", _describe(workers, max(1, len(hosts)) * count, gpus, shares))
        return processes.run(command, workers, grace=flag_values.grace)


def _flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    integers = {
        "workers": (1, 1, "How many workers to start on this host (on each of --hosts)."),
        "gpus_per_worker": (
            None,
            0,
            "GPUs of each worker; all, shared out evenly, if not given; 0 trains on CPUs.",
        ),
        "index": (None, 0, "Which of --hosts this one is, from 0."),
        "port": (0, 0, "The first worker's port; free ones, or 2222 with --hosts, if 0."),
    }
    for name, (default, low, text) in integers.items():
        flags.DEFINE_integer(name, default, text, lower_bound=low, flag_values=flag_values)
    flags.DEFINE_list(
        "hosts", [], "All hosts, such as a,b, the same on each.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "module", None, "Module to run; tfaccel.train if not given.", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "horovod",
        False,
        "Start Horovod's workers, for distribution.strategy=horovod; on this host only.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "grace",
        30.0,
        "Seconds that workers get to end before they are killed.",
        lower_bound=0.0,
        flag_values=flag_values,
    )
    return flag_values


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the launcher's own words, and those after "--"."""
    if "--" not in argv:
        if any(word in ("--help", "-h", "-help", "--helpfull") for word in argv[1:]):
            return list(argv), []
        raise UserError(
            "received no --, expected it before what to run: python -m tfaccel.launch "
            "--workers=2 -- --config=quickstart."
        )
    place = list(argv).index("--")
    return list(argv[:place]), list(argv[place + 1 :])


def _check(flag_values: flags.FlagValues, hosts: Sequence[str]) -> None:
    if flag_values.horovod and (hosts or flag_values.port):
        raise UserError(
            "received --horovod with --hosts or --port: we start Horovod's workers on this "
            "host only. For several hosts there is horovodrun -np 4 -H a:2,b:2."
        )
    if hosts and flag_values.index is None:
        raise UserError(
            f"received --hosts={','.join(hosts)} without --index, expected which of them this "
            f"host is, from 0 to {len(hosts) - 1}."
        )
    if flag_values.index is not None and not hosts:
        raise UserError("received --index without --hosts, expected all hosts' names with it.")
    if hosts and flag_values.index >= len(hosts):
        raise UserError(
            f"received --index={flag_values.index} with {len(hosts)} host(s), expected 0 to "
            f"{len(hosts) - 1}."
        )
    doubled = next((name for name in hosts if hosts.count(name) > 1), None)
    if doubled:
        raise UserError(
            f"received {doubled} twice in --hosts: name it once, with --workers=2 for two "
            "workers on each host."
        )


def _describe(workers, total: int, gpus, shares) -> str:
    each = f"{len(shares[0])} GPU(s)" if shares else "no GPU"
    idle = len(gpus) - sum(map(len, shares))
    threads = workers[0].variables["OMP_NUM_THREADS"]
    return (
        f"launch: {len(workers)} of {total} worker(s) here, each with {each} and "
        f"{threads} CPU(s)" + (f"; {idle} GPU(s) idle" if idle and shares else "")
    )


if __name__ == "__main__":
    sys.exit(cli.main(run))
