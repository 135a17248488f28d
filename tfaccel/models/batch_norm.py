"""BatchNorm over the whole batch of all replicas, instead of each replica's part."""

from __future__ import annotations

from collections.abc import Iterator

from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


def build(model: keras.Model, *, synchronized: bool = False) -> keras.Model:
    """Returns the model, its BatchNormalization layers synchronised if asked.

    Args:
        model: A built model; nested models are looked into.
        synchronized: Take mean and variance over all replicas. Costs two
            collectives a layer and pass; worth it where a replica has few images.

    Raises:
        UserError: If the model has no such layer.
    """
    if not synchronized:
        return model
    layers = list(_layers(model))
    if not layers:
        raise UserError(
            f"received batch_norm.synchronized=True, but {model.name} has no "
            "BatchNormalization layer: leave it out."
        )
    for layer in layers:
        layer.synchronized = True
    logger.info("batch_norm: %d layers synchronised over the replicas", len(layers))
    return model


def check_step(model: keras.Model, replicas: int, jit: bool, accumulation: int) -> None:
    """Refuses synchronised layers where their collectives cannot run.

    Args:
        model: The model that a step will run.
        replicas: How many there are.
        jit: Whether the forward pass is compiled.
        accumulation: Micro-steps a step.
    """
    if replicas == 1 or not any(layer.synchronized for layer in _layers(model)):
        return
    if jit and not tf.config.list_logical_devices("GPU"):
        raise UserError(
            "received synchronised BatchNorm with jit on CPU devices, where XLA has no "
            "collectives: switch one of them off."
        )
    if accumulation > 1:
        raise UserError(
            f"received synchronised BatchNorm with accumulation={accumulation}, expected 1: "
            "a collective cannot run inside the loop over micro-steps."
        )


def _layers(model) -> Iterator[keras.layers.BatchNormalization]:
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            yield layer
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
