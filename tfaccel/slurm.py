"""What Slurm tells the tasks that srun starts, and how it writes lists of nodes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping

from tfaccel.errors import UserError

# Set where each task has GPUs of its own (srun --gpus-per-task, --tres-per-task).
OWN_GPUS = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
# The steps that are no srun of the user's: the batch script, and salloc's shell
# (slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP).
_NOT_SRUN = ("4294967291", "4294967290")


@dataclasses.dataclass(frozen=True)
class Step:
    """One srun: its nodes, the tasks on each, and this task's rank."""

    name: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    rank: int


def step(environment: Mapping[str, str]) -> Step | None:
    """Returns the srun that started this process, None if none did.

    Raises:
        UserError: If Slurm's variables contradict each other.
    """
    if not _is_srun(environment):
        return None
    nodes = expand_nodes(environment["SLURM_STEP_NODELIST"])
    tasks = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    if len(nodes) != len(tasks):
        raise UserError(
            f"received SLURM_STEP_NODELIST={environment['SLURM_STEP_NODELIST']!r} "
            f"({len(nodes)} nodes) with SLURM_STEP_TASKS_PER_NODE="
            f"{environment['SLURM_STEP_TASKS_PER_NODE']!r} ({len(tasks)}), expected as many."
        )
    rank = environment.get("SLURM_PROCID", "")
    if not rank.isdigit() or int(rank) >= sum(tasks):
        raise UserError(
            f"received SLURM_PROCID={rank!r}, expected a whole number from 0 to "
            f"{sum(tasks) - 1} ({sum(tasks)} tasks in SLURM_STEP_TASKS_PER_NODE)."
        )
    found = Step(_name(environment), tuple(nodes), tuple(tasks), int(rank))
    _check_order(found, environment)
    return found


def forgotten_srun(environment: Mapping[str, str]) -> str:
    """Returns what to do in a job of several tasks without srun, "" elsewhere."""
    tasks = environment.get("SLURM_NTASKS", "")
    in_job = "SLURM_JOB_ID" in environment and tasks.isdigit() and int(tasks) > 1
    if not in_job or _is_srun(environment):
        return ""
    return (
        f"Slurm job {environment['SLURM_JOB_ID']} has {tasks} tasks, but this process was "
        "started without srun, which starts them all: write srun before python."
    )


def expand_nodes(text: str) -> list[str]:
    """Returns the names that a list such as "n[09-11,15],m2" stands for.

    Raises:
        UserError: If it is no such list.

    Example:
        >>> expand_nodes("n[09-11],m2")
        ['n09', 'n10', 'n11', 'm2']
    """
    # A comma outside brackets ends a name; inside, it parts numbers.
    if not re.fullmatch(r"([^\[\],]|\[[^\[\]]*\])+(,([^\[\],]|\[[^\[\]]*\])+)*", text):
        raise _node_error(text, text)
    names = []
    for pattern in re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", pattern)
        # Even parts are plain text, odd ones the inside of brackets.
        choices = [_numbers(p, text) if i % 2 else [p] for i, p in enumerate(parts)]
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names


def expand_counts(text: str) -> list[int]:
    """Returns the counts that a text such as "2(x3),1" stands for.

    Raises:
        UserError: If it is no such text.

    Example:
        >>> expand_counts("2(x3),1")
        [2, 2, 2, 1]
    """
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise UserError(
                f"received the task counts {text!r} from Slurm, expected such as 2(x3),1."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _numbers(inside: str, text: str) -> list[str]:
    found = []
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise _node_error(f"[{inside}]", text)
        width = len(match[1])
        last = int(match[2] or match[1])
        found += [str(number).zfill(width) for number in range(int(match[1]), last + 1)]
    return found


def _is_srun(environment) -> bool:
    """Only srun sets a step's variables; a batch script has just the job's."""
    needed = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    return (
        all(name in environment for name in needed)
        and environment.get("SLURM_STEP_ID") not in _NOT_SRUN
    )


def _name(environment) -> str:
    job, number = environment.get("SLURM_JOB_ID", "?"), environment.get("SLURM_STEP_ID", "0")
    return job if number == "0" else f"{job}.{number}"


def _check_order(found: Step, environment) -> None:
    """Ranks must fill one node after the other, or addresses would be swapped."""
    here = environment.get("SLURMD_NODENAME", "")
    filled = [
        n for n, count in zip(found.nodes, found.tasks, strict=True) for _ in range(count)
    ]
    if here and here != filled[found.rank]:
        raise UserError(
            f"received SLURM_PROCID={found.rank} on SLURMD_NODENAME={here!r}, expected it on "
            f"{filled[found.rank]}: start with srun --distribution=block."
        )


def _node_error(part: str, text: str) -> UserError:
    inside = f" in the node list {text!r}" if part != text else " as a node list"
    return UserError(f"received {part!r}{inside} from Slurm, expected such as n[09-11],m2.")
