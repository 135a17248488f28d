"""The combinations: all of them, or few that hold every pair of values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

AXES = {
    "replicas": (1, 2, 4),
    "workers": (1, 2),
    "precision": ("float32", "mixed_bfloat16", "mixed_float16"),
    "jit": (False, True),
    "accumulation": (1, 4),
    "clip": (False, True),
    "ema": (False, True),
    "pruning": (False, True),
}

SWITCHES = tuple(name for name, values in AXES.items() if values == (False, True))


@dataclasses.dataclass(frozen=True)
class Case:
    """One combination of what can be switched on.

    Args:
        replicas: Mirrored devices of each worker.
        workers: Processes.
        precision: Keras's dtype policy.
        jit: Whether XLA compiles.
        accumulation: Micro-steps an update.
        clip: Whether gradients are clipped by their global norm.
        ema: Whether an average of weights is kept.
        pruning: Whether half of the weights are pruned.
    """

    replicas: int = 1
    workers: int = 1
    precision: str = "float32"
    jit: bool = False
    accumulation: int = 1
    clip: bool = False
    ema: bool = False
    pruning: bool = False

    @property
    def parts(self) -> int:
        """In how many parts a batch is cut."""
        return self.replicas * self.workers * self.accumulation

    def __str__(self) -> str:
        devices = f"{self.workers} workers" if self.workers > 1 else f"{self.replicas} replicas"
        switched = [name for name in SWITCHES if getattr(self, name)]
        rest = [f"accumulation {self.accumulation}", *switched]
        return f"{devices}, {self.precision}, {', '.join(rest)}"


def everything() -> list[Case]:
    """Returns every combination; several workers have one replica each."""
    products = itertools.product(*AXES.values())
    cases = (Case(**dict(zip(AXES, values, strict=True))) for values in products)
    return [case for case in cases if case.workers == 1 or case.replicas == 1]


def chosen(full: bool) -> list[Case]:
    """Returns what a self-test trains: every combination, or every pair of values.

    In the order of their devices.
    """
    found = everything() if full else pairwise(everything())
    return sorted(found, key=lambda case: (case.workers, case.replicas))


def pairwise(cases: Iterable[Case]) -> list[Case]:
    """Returns few of the cases that hold every pair of values that all of them hold.

    Greedy: always the case with the most pairs that are still missing.
    """
    cases = list(cases)
    missing = set().union(*(_pairs(case) for case in cases))
    few = []
    while missing:
        best = max(cases, key=lambda case: len(_pairs(case) & missing))
        few.append(best)
        missing -= _pairs(best)
    return few


def _pairs(case: Case) -> set:
    values = dataclasses.asdict(case)
    devices = ("devices", (values.pop("replicas"), values.pop("workers")))
    return set(itertools.combinations([devices, *values.items()], 2))
