"""The weights that can be pruned, and what each is to reach."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.errors import UserError, did_you_mean
from tfaccel.lazy import keras

_NAMES = ("kernel", "pointwise_kernel", "recurrent_kernel")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A weight that can be pruned.

    Args:
        layer: The Keras layer that owns it.
        weight: The Keras variable.
    """

    layer: Any
    weight: Any

    @property
    def path(self) -> str:
        """The variable's full name, such as "block1_conv1/kernel"."""
        return self.weight.path

    @property
    def names(self) -> list[str]:
        """What a pattern may mean: the layer, those around it, the path to it."""
        *parents, _ = self.path.split("/")
        return list(dict.fromkeys([self.layer.name, *parents, "/".join(parents)]))

    def value(self) -> np.ndarray:
        """Returns the weight as float32."""
        return np.asarray(self.weight.numpy(), np.float32)


@dataclasses.dataclass(frozen=True)
class Target:
    """A kernel and the share of it that is to be zero in the end."""

    kernel: Kernel
    sparsity: float


def find(model: keras.Model) -> list[Kernel]:
    """Returns all kernels of a model, in the order of its variables.

    Those of nested models, wrappers and recurrent cells, too; not those of depthwise
    convolutions, which are few and have nine weights a channel.

    PRIVATE KERAS API (3.15): Layer._flatten_layers, the only way to layers that are
    held by other layers. tests/pruning/test_kernels.py tells when Keras changes.

    Raises:
        UserError: If the model has no weights yet.
    """
    depthwise = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
    found = {}
    for layer in model._flatten_layers():
        for name in _NAMES if not isinstance(layer, depthwise) else ():
            weight = getattr(layer, name, None)
            if isinstance(weight, keras.Variable) and len(weight.shape) >= 2:
                found.setdefault(id(weight), Kernel(layer, weight))
    if not model.built or not model.variables:
        raise UserError(
            f"received the model {model.name!r}, which has no weights yet: call it on a "
            "batch, or model.build(input_shape), before it is pruned."
        )
    order = {id(variable): place for place, variable in enumerate(model.variables)}
    return [found[key] for key in sorted(found, key=order.get)]


def targets(model: keras.Model, sparsity: float, layers: dict[str, float]) -> list[Target]:
    """Returns the kernels to prune, each with its target.

    Args:
        model: A built model.
        sparsity: The target of kernels that no pattern matches.
        layers: Targets by name or pattern; 0 leaves a layer as it is. A name counts
            more than a pattern.

    Raises:
        UserError: If a pattern matches nothing, two of them disagree, or nothing is
            left to prune.
    """
    kernels = find(model)
    _check_patterns(kernels, layers)
    wanted = [Target(kernel, _target(kernel, sparsity, layers)) for kernel in kernels]
    wanted = [target for target in wanted if target.sparsity]
    if not wanted:
        raise UserError(
            f"there is nothing to prune in {model.name!r}: it has {len(kernels)} kernel(s), "
            f"and pruning.layers={layers} leaves none."
        )
    return wanted


def masks(model: keras.Model) -> list[keras.Variable]:
    """Returns the masks of a model's pruned weights: booleans, True where kept.

    They belong to what a checkpoint must hold.
    """
    constraints = [variable.constraint for variable in model.variables]
    return [constraint.kept for constraint in constraints if hasattr(constraint, "kept")]


def masked(weight: keras.Variable, value: Any) -> Any:
    """Returns a value for a weight (such as its average) with the pruned places zero.

    Args:
        weight: A Keras variable of the model, pruned or not.
        value: An array or tensor of its shape.
    """
    kept = getattr(weight.constraint, "kept", None)
    return value if kept is None else keras.ops.where(kept, value, keras.ops.zeros_like(value))


def _check_patterns(kernels: Sequence[Kernel], layers: dict[str, float]) -> None:
    for pattern in layers:
        if not any(fnmatch.filter(kernel.names, pattern) for kernel in kernels):
            known = {kernel.layer.name for kernel in kernels}
            raise UserError(
                f"received pruning.layers.{pattern}, which matches no layer with a kernel. "
                f"{did_you_mean(pattern, known)}"
            )


def _target(kernel: Kernel, sparsity: float, layers: dict[str, float]) -> float:
    if kernel.layer.name in layers:
        return layers[kernel.layer.name]
    matching = {p: v for p, v in layers.items() if fnmatch.filter(kernel.names, p)}
    if len(set(matching.values())) > 1:
        raise UserError(
            f"received pruning.layers={matching}, which all match {kernel.path}: name the "
            f"layer itself ({kernel.layer.name}), or make the patterns narrower."
        )
    return next(iter(matching.values()), sparsity)
