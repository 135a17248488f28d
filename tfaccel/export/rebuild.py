"""The model that is exported: float32, without what only training needs, folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tfaccel import precision
from tfaccel.errors import UserError, one_line
from tfaccel.export.normalization import Normalization
from tfaccel.lazy import keras, tf

INPUT = "images"
_HALVES = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")
_TRAINING_ONLY = ("_constraint", "_regularizer")


def float32(model: keras.Model) -> keras.Model:
    """Returns the model with the same weights and every layer in float32.

    Constraints, regularizers and the compiled state are left behind, so the
    result loads where their code is not. Nested models are rebuilt, too.

    Args:
        model: A functional or Sequential model of one input and one output,
            of any dtype policy.

    Raises:
        UserError: If the model cannot be taken apart.

    Example:
        exported = float32(keras.models.load_model("model.keras", compile=False))
    """
    check(model)
    with precision.scope(keras.DTypePolicy("float32")):
        return _rebuilt(model, fold=False, name_input=True)


def fold_batch_norm(model: keras.Model) -> keras.Model:
    """Returns the model with BatchNormalization folded into the layer before it.

    gamma * (kernel x + bias - mean) / sqrt(variance + epsilon) + beta is again a
    kernel and a bias (Jacob et al., "Quantization and Training of Neural
    Networks for Efficient Integer-Arithmetic-Only Inference", 2018, section
    3.2). Folded where a normalisation of the last axis is the only reader of a
    convolution's or Dense layer's output, without an activation between them;
    zeros of the kernel stay zeros. All other normalisations are left alone.

    Args:
        model: As for `float32`.
    """
    check(model)
    with precision.scope(keras.DTypePolicy("float32")):
        return _rebuilt(model, fold=True, name_input=True)


def include_preprocessing(model: keras.Model, normalization: Normalization) -> keras.Model:
    """Returns a model that takes uint8 images and normalises them itself."""
    scale, offset = list(normalization.scale), list(normalization.offset)
    with precision.scope(keras.DTypePolicy("float32")):
        images = keras.Input(model.inputs[0].shape[1:], dtype="uint8", name=INPUT)
        normalized = keras.layers.Rescaling(scale, offset, name="normalize")(images)
        return keras.Model(images, model(normalized), name=model.name)


def batch_norms(model: keras.Model) -> int:
    """Returns how many BatchNormalization layers a model has, nested ones too."""
    norm = keras.layers.BatchNormalization
    return sum(isinstance(layer, norm) for layer in flat_layers(model))


def flat_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model and of the functional models nested in it."""
    for layer in model.layers:
        if _is_graph(layer):
            yield from flat_layers(layer)
        else:
            yield layer


def check(model: keras.Model) -> None:
    """Refuses what is no functional or Sequential model of one input and output."""
    if not isinstance(model, keras.Model):
        raise UserError(f"received {type(model).__name__}, expected a keras.Model to export.")
    if not _is_graph(model):
        raise UserError(
            f"received the model {model.name!r}, which is a subclass with its own call() or "
            "is not built: expected a functional or Sequential model. Wrap it: inputs = "
            "keras.Input(shape); keras.Model(inputs, model(inputs))."
        )
    ends = len(model.inputs), len(model.outputs)
    if ends != (1, 1):
        raise UserError(
            f"received the model {model.name!r} of {ends[0]} inputs and {ends[1]} outputs, "
            "expected one each: an image in, logits or probabilities out."
        )


def _rebuilt(model, *, fold: bool, name_input: bool = False):
    """Clones one level of a model; nested models are rebuilt the same way."""
    graph = _functional(model)
    norm_of = _foldable(graph) if fold else {}
    folded, copies = set(norm_of.values()), []

    def clone(layer):
        if _is_graph(layer):
            return _rebuilt(layer, fold=fold)
        bias = {"use_bias": True} if layer.name in norm_of else {}
        copy = _copy(layer, bias)
        if layer.name not in folded:
            copies.append((layer, copy))
        return copy

    def call(layer, *args, **kwargs):
        if layer.name in folded:
            return [*args, *kwargs.values()][0]
        return layer(*args, **kwargs)

    inputs = _input_like(graph.inputs[0]) if name_input else None
    rebuilt = keras.models.clone_model(graph, inputs, clone, call)
    for layer, copy in copies:
        norm = norm_of.get(layer.name)
        weights = _weights(layer) if norm is None else _folded(layer, graph.get_layer(norm))
        if weights:
            copy.set_weights(weights)
        if isinstance(copy, keras.layers.Normalization):
            copy.finalize_state()  # What it has adapted to becomes what it subtracts.
    return rebuilt


def _is_graph(layer) -> bool:
    """Whether a layer is a functional or built Sequential model."""
    if isinstance(layer, keras.Sequential):
        return layer.built and bool(layer.outputs)
    return isinstance(layer, keras.Model) and hasattr(layer, "operations")


def _functional(model):
    """A functional view of a model, sharing its layers, which is not compiled."""
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.input
    outputs = model.outputs[0] if len(model.outputs) == 1 else model.output
    return keras.Model(inputs, outputs, name=model.name)


def _input_like(tensor):
    dtype = "float32" if tf.as_dtype(tensor.dtype).is_floating else tensor.dtype
    return keras.Input(batch_shape=tensor.shape, dtype=dtype, name=INPUT)


def _copy(layer, changes: dict):
    """A layer, or an operation of keras.ops, of the same config in float32."""
    try:
        config = _in_float32(layer.get_config())
        for name in config:
            if name.endswith(_TRAINING_ONLY):
                config[name] = None
        return type(layer).from_config({**config, **changes})
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UserError(
            f"the layer {layer.name!r} ({type(layer).__name__}) cannot be rebuilt from its "
            f"get_config(): {one_line(error)}"
        ) from error


def _in_float32(value, name: str = ""):
    if isinstance(value, dict):
        if value.get("class_name") == "DTypePolicy":
            return {**value, "config": {"name": _in_float32(value["config"]["name"], "dtype")}}
        return {key: _in_float32(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_in_float32(item, name) for item in value)
    return "float32" if "dtype" in name and value in _HALVES else value


def _weights(layer) -> list[np.ndarray]:
    weights = getattr(layer, "get_weights", list)()
    # bfloat16 is of kind "V" to NumPy: all but whole numbers become float32.
    return [w if w.dtype.kind in "biu" else w.astype(np.float32) for w in weights]


def _foldable(graph) -> dict[str, str]:
    """Returns {layer: its BatchNormalization} by name, from the graph's public config."""
    config = graph.get_config()
    readers = Counter(_sources([node["inbound_nodes"] for node in config["layers"]]))
    readers.update(_sources(config["output_layers"], outputs=True))
    nodes = {node["name"]: node["inbound_nodes"] for node in config["layers"]}
    layers = {layer.name: layer for layer in graph.layers}
    pairs = {}
    for norm in graph.layers:
        if type(norm) is not keras.layers.BatchNormalization or len(nodes[norm.name]) != 1:
            continue
        (source,) = _sources(nodes[norm.name])
        once = readers[source] == 1 and len(nodes[source]) == 1
        if once and source in layers and _fits(layers[source], norm):
            pairs[source] = norm.name
    return pairs


def _sources(value, outputs: bool = False) -> Iterator[str]:
    """Yields the layer that each tensor within a part of a model's config is from."""
    if isinstance(value, dict):
        history = value.get("config", {}).get("keras_history")
        if value.get("class_name") == "__keras_tensor__" and history:
            yield history[0]
        else:
            yield from _sources(list(value.values()), outputs)
    elif isinstance(value, (list, tuple)):
        if outputs and len(value) == 3 and isinstance(value[0], str):
            yield value[0]
        else:
            for item in value:
                yield from _sources(item, outputs)


def _fits(layer, norm) -> bool:
    kinds = (
        *(getattr(keras.layers, f"Conv{n}D") for n in (1, 2, 3)),
        keras.layers.Conv2DTranspose,
        keras.layers.DepthwiseConv2D,
        keras.layers.SeparableConv2D,
        keras.layers.Dense,
    )
    return (
        type(layer) in kinds
        and layer.activation is keras.activations.linear
        and getattr(layer, "data_format", "channels_last") == "channels_last"
        and not getattr(layer, "lora_enabled", False)
        and norm.axis in (-1, len(layer.output.shape) - 1)
    )


def _folded(layer, norm) -> list[np.ndarray]:
    """The layer's weights, with a bias, that do what layer and normalisation did."""
    weights = [np.float64(w) for w in _weights(layer)]
    *kernels, bias = weights if layer.use_bias else [*weights, np.float64(0)]
    mean, variance = np.float64(norm.moving_mean), np.float64(norm.moving_variance)
    scale = 1 / np.sqrt(variance + norm.epsilon)
    if norm.scale:
        scale = scale * np.float64(norm.gamma)
    bias = (bias - mean) * scale + (np.float64(norm.beta) if norm.center else 0)
    per_kernel = scale
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        per_kernel = scale.reshape(kernels[-1].shape[-2:])
    elif isinstance(layer, keras.layers.Conv2DTranspose):
        per_kernel = scale[:, None]
    kernels[-1] = kernels[-1] * per_kernel
    return [w.astype(np.float32) for w in (*kernels, bias)]
