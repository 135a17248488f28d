"""Which weights to keep: those of largest magnitude.

Plain NumPy on the host, so that equal weights give equal masks on every machine.
The masks are those of TFMOT 0.8, which sorts all weights to find its threshold;
here it is selected, in linear time.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence

import numpy as np

from tfaccel.errors import UserError
from tfaccel.lazy import keras
from tfaccel.pruning.kernels import Target


def build(targets: Sequence[Target], threshold: str, m_by_n: str) -> Rule:
    """Returns the rule by which weights are kept.

    Args:
        targets: The kernels, each with its final sparsity.
        threshold: "layer" or "global".
        m_by_n: Such as "2:4", or "".

    Raises:
        UserError: If there are more zeros already, or a layer has no input channels to
            group.
    """
    if m_by_n:
        return ByGroups(targets, *parse_m_by_n(m_by_n))
    return ByLayer(targets) if threshold == "layer" else Globally(targets)


def parse_m_by_n(text: str) -> tuple[int, int]:
    """Returns (zeros, group size) of "2:4".

    Raises:
        UserError: If it is something else.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text)
    m, n = map(int, match.groups()) if match else (0, 0)
    if not 0 < m < n:
        raise UserError(
            f"received pruning.m_by_n={text}, expected 'm:n' with 0 < m < n, such as 2:4 "
            "(2 zeros in each 4)."
        )
    return m, n


def kept_count(size: int, sparsity: float) -> int:
    """Returns how many weights to keep, in TFMOT's arithmetic: at least 1.

    Example:
        >>> kept_count(1728, 0.5)
        864
    """
    share = np.float32(1) - np.float32(sparsity)
    return max(int(np.round(np.float32(size) * share)), 1)


def threshold(magnitudes: np.ndarray, sparsity: float) -> np.float32:
    """Returns the smallest magnitude that is kept; equal ones are kept, too.

    Args:
        magnitudes: Any shape, float32.
        sparsity: Share to prune.
    """
    flat = magnitudes.ravel()
    place = flat.size - kept_count(flat.size, sparsity)
    return np.partition(flat, place)[place]


class Rule(abc.ABC):
    """Which weights of some kernels to keep.

    Args:
        targets: The kernels, each with its final sparsity.
    """

    def __init__(self, targets: Sequence[Target]):
        self.targets = list(targets)

    @abc.abstractmethod
    def masks(self, values: list[np.ndarray], sparsities: list[float]) -> list[np.ndarray]:
        """Returns a mask for each kernel, True where a weight is kept.

        Args:
            values: The kernels' weights, float32.
            sparsities: What each is to reach now.
        """

    @abc.abstractmethod
    def shortfalls(self, values: list[np.ndarray]) -> list[str]:
        """Returns what misses its final sparsity, in words."""


class ByLayer(Rule):
    """Each kernel reaches its own target."""

    def __init__(self, targets: Sequence[Target]):
        super().__init__(targets)
        for target in targets:
            value = target.kernel.value()
            _check_zeros(
                target.kernel.path, np.count_nonzero(value), value.size, target.sparsity
            )

    def masks(self, values, sparsities):
        """Returns a mask for each kernel."""
        magnitudes = [np.abs(value) for value in values]
        pairs = zip(magnitudes, sparsities, strict=True)
        return [_reaching(magnitude, threshold(magnitude, s)) for magnitude, s in pairs]

    def shortfalls(self, values):
        """Returns the kernels that miss their targets."""
        return [
            f"{target.kernel.path} {1 - np.count_nonzero(value) / value.size:.4f}"
            for target, value in zip(self.targets, values, strict=True)
            if _misses(np.count_nonzero(value), value.size, target.sparsity)
        ]


class Globally(Rule):
    """All kernels together reach one target, the same for each."""

    def __init__(self, targets: Sequence[Target]):
        super().__init__(targets)
        kept, size = _total([target.kernel.value() for target in targets])
        _check_zeros("the model", kept, size, targets[0].sparsity)

    def masks(self, values, sparsities):
        """Returns a mask for each kernel."""
        magnitudes = [np.abs(value) for value in values]
        everything = np.concatenate([magnitude.ravel() for magnitude in magnitudes])
        limit = threshold(everything, sparsities[0])
        return [_reaching(magnitude, limit) for magnitude in magnitudes]

    def shortfalls(self, values):
        """Returns all kernels together, if they miss the target."""
        kept, size = _total(values)
        missed = _misses(kept, size, self.targets[0].sparsity)
        return [f"all kernels together {1 - kept / size:.4f}"] if missed else []


class ByGroups(Rule):
    """Of each `n` consecutive input channels, `m` are zero.

    2:4 is what NVIDIA's sparse tensor cores multiply, along the reduction dimension of
    the product (Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021); in a
    convolution these are the input channels, for each output channel and place of the
    kernel (NVIDIA, TensorRT documentation, "Sparsity"). A last group that is short
    counts as filled up with zeros, as in TFMOT.

    Args:
        targets: The kernels; of Dense, Conv1D, Conv2D and Conv3D layers.
        m: Zeros in a group.
        n: Size of a group.
    """

    def __init__(self, targets, m: int, n: int):
        super().__init__(targets)
        self.m, self.n = m, n
        for target in targets:
            self._check_layer(target.kernel.layer)

    def masks(self, values, sparsities):
        """Returns a mask for each kernel; of equal weights in a group the first stay."""
        return [self._mask(np.abs(value)) for value in values]

    def shortfalls(self, values):
        """Returns the kernels that have groups of too few zeros."""
        words = []
        for target, value in zip(self.targets, values, strict=True):
            kept = np.count_nonzero(self._groups(value), axis=-1)
            too_full = np.count_nonzero(kept > self.n - self.m)
            if too_full:
                words.append(f"{target.kernel.path}: {too_full} of {kept.size} groups")
        return words

    def _mask(self, magnitudes):
        groups = self._groups(magnitudes)
        rank = np.zeros(groups.shape, np.uint16)
        for place in range(self.n):
            other = groups[..., place : place + 1]
            rank += (other > groups) | ((other == groups) & (place < np.arange(self.n)))
        kept = (rank < self.n - self.m).reshape(*groups.shape[:-2], -1)
        return np.moveaxis(kept[..., : magnitudes.shape[-2]], -1, -2)

    def _groups(self, value):
        """Dense and convolution kernels end in (input channels, output channels)."""
        last = np.moveaxis(value, -2, -1)
        padding = [(0, 0)] * (last.ndim - 1) + [(0, -last.shape[-1] % self.n)]
        return np.pad(last, padding).reshape(*last.shape[:-1], -1, self.n)

    def _check_layer(self, layer):
        layers = keras.layers
        if not isinstance(layer, (layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D)):
            raise UserError(
                f"received pruning.m_by_n={self.m}:{self.n}, but {layer.name} is a "
                f"{type(layer).__name__}, expected Dense or Conv1D to Conv3D: leave it out "
                f"with pruning.layers={{{layer.name!r}: 0}}."
            )


def _reaching(magnitudes: np.ndarray, limit: np.float32) -> np.ndarray:
    """Not `>=`, which would turn the NaNs of a run gone wrong into quiet zeros."""
    return ~(magnitudes < limit)


def _total(values: list[np.ndarray]) -> tuple[int, int]:
    """Returns (weights that are not zero, weights)."""
    return sum(map(np.count_nonzero, values)), sum(value.size for value in values)


def _misses(kept: int, size: int, sparsity: float) -> bool:
    """Equal magnitudes at the threshold are all kept, so a few more are let pass."""
    return kept > kept_count(size, sparsity) + _slack(size)


def _check_zeros(name: str, kept: int, size: int, sparsity: float) -> None:
    """A kernel of zeros only is not trained yet, and says nothing."""
    if 0 < kept < kept_count(size, sparsity) - _slack(size):
        raise UserError(
            f"{name} has {1 - kept / size:.2f} of its weights zero already, asked for "
            f"{sparsity:.2f}: ask for at least that, or leave layers out with "
            "pruning.layers={'NAME': 0}."
        )


def _slack(size: int) -> int:
    return max(1, size // 10_000)
