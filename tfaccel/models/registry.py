"""Models by name: our own, Keras's applications, or the user's function."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tfaccel import user_code
from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.fields import Count, Flag
from tfaccel.lazy import keras
from tfaccel.log import logger
from tfaccel.models import pretrained

Head = Literal["original", "pooled"]

_OWN = ("resnet50", "resnet9", "vgg16")
_GIVEN = ("input_shape", "num_classes", "classes", "weights")


def check(
    *,
    name: str,
    weights: str | None,
    arguments: dict,
    head: Head = "original",
    hidden_units: Count = 0,
    freeze_base: Flag = "auto",
) -> None:
    """Refuses weights that cannot be there; names are checked by `build`."""
    del arguments
    # Functions of keras.applications begin with a capital.
    application = name[:1].isupper() and ":" not in name
    if head == "pooled" and not application:
        raise UserError(
            f"received model.head=pooled for model.name={name}, expected a function of "
            "keras.applications, such as VGG16: other models have the head they have."
        )
    if head == "original" and (hidden_units or freeze_base is True):
        field = "hidden_units" if hidden_units else "freeze_base"
        value = hidden_units or freeze_base
        raise UserError(
            f"received model.{field}={value} with model.head=original, expected "
            "model.head=pooled: the original has no part of its own to train."
        )
    if weights == "imagenet" and head != "pooled":
        raise UserError(
            f"received model.weights=imagenet for model.name={name} with model.head={head}: "
            "these weights tell 1,000 classes apart, others need a new head. Use a function "
            "of keras.applications, such as VGG16, and model.head=pooled."
        )
    if weights not in (None, "imagenet") and not Path(weights).is_file():
        raise UserError(
            f"received model.weights={weights}, expected the path of an existing "
            ".weights.h5 or .keras file, or imagenet."
        )


def build(
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    name: str = "resnet9",
    weights: str | None = None,
    head: Head = "original",
    hidden_units: Count = 0,
    freeze_base: Flag = "auto",
    arguments: dict | None = None,
) -> keras.Model:
    """Returns a classifier with float32 outputs, built under the current policy.

    Args:
        input_shape: (height, width, channels) of the images.
        num_classes: Number of outputs.
        name: "resnet9", "resnet50", "vgg16"; a function of keras.applications,
            such as "MobileNetV2"; or "module:function", called as
            `function(input_shape=..., num_classes=...)`.
        weights: "imagenet" for those that Keras publishes, a .weights.h5 or .keras
            file to start from, or None for random ones.
        head: "original", or "pooled" to put global average pooling and new Dense
            layers in the place of the top of a function of keras.applications.
        hidden_units: Units of a hidden layer in the new head; 0 for none.
        freeze_base: Train the new head alone; "auto" does so with ImageNet weights.
        arguments: Further keyword arguments of the model's function.

    Raises:
        UserError: If there is no such model, or it cannot be built for these
            images.

    Example:
        model = build((32, 32, 3), 10, name="resnet9", arguments={"width": 16})
    """
    arguments = dict(arguments or {})
    check(
        name=name,
        weights=weights,
        head=head,
        hidden_units=hidden_units,
        freeze_base=freeze_base,
        arguments=arguments,
    )
    function = _find(name)
    if head == "pooled":
        freeze = _freeze(freeze_base, weights)
        function = _with_head(name, function, weights == "imagenet", hidden_units, freeze)
    _check_arguments(name, function, arguments)
    try:
        model = function(input_shape=tuple(input_shape), num_classes=num_classes, **arguments)
    except (ValueError, TypeError) as error:
        if ":" in name or isinstance(error, UserError):
            raise
        size = "x".join(map(str, input_shape))
        raise UserError(
            f"model.name={name} cannot be built for images of {size}: {one_line(error)}"
        ) from error
    model = _in_float32(_checked(model, name, num_classes))
    if weights not in (None, "imagenet"):
        _load_weights(model, weights)
    logger.info("model: %s, %s parameters", name, f"{model.count_params():,}")
    return model


def gives_probabilities(model: keras.Model) -> bool:
    """Returns whether the model ends in a softmax; otherwise it gives logits."""
    for layer in reversed(model.layers):
        if isinstance(layer, keras.layers.Softmax):
            return True
        if isinstance(layer, keras.Model):
            return gives_probabilities(layer)
        activation = getattr(layer, "activation", keras.activations.linear)
        if activation is not keras.activations.linear:
            return activation is keras.activations.softmax
        if not isinstance(layer, keras.layers.Activation):
            return False
    return False


def check_scaling(model: keras.Model, normalize: str) -> None:
    """Refuses to normalise images for a model that rescales them itself.

    Args:
        model: The model.
        normalize: How the data are normalised; see `tfaccel.data.normalize`.

    Raises:
        UserError: Unless `normalize` is "none" or the model takes images as they are.
    """
    rescaling = (keras.layers.Rescaling, keras.layers.Normalization)
    for layer in model.layers[:3]:
        if normalize != "none" and isinstance(layer, rescaling):
            raise UserError(
                f"{model.name} scales images itself (layer {layer.name!r}), but "
                f"data.normalize={normalize} would do it a second time: set "
                "data.normalize=none."
            )


def check_preprocessing(weights: str | None, normalize: str) -> None:
    """Refuses ImageNet weights on images that are not as they were trained.

    Args:
        weights: As for `build`.
        normalize: How the data are normalised; see `tfaccel.data.normalize`.
    """
    if weights == "imagenet" and normalize in ("dataset", "unit"):
        raise UserError(
            f"received model.weights=imagenet with data.normalize={normalize}: these weights "
            "need the preprocessing they were trained with. Set data.normalize=model (or none, "
            "for a model that does it itself)."
        )


def _find(name: str) -> Callable:
    if ":" in name:
        return user_code.function(name, "model.name")
    if name in _OWN:
        return getattr(importlib.import_module(f"tfaccel.models.{name}"), name)
    applications = {n: f for n, f in vars(keras.applications).items() if n[0].isupper()}
    if name in applications:
        return _application(applications[name])
    raise UserError(
        f"received model.name={name}, expected {', '.join(_OWN)}, a function of "
        f"keras.applications, or 'module:function'. {_hint(name, applications)}"
    )


def _hint(name: str, applications: dict) -> str:
    hint = did_you_mean(name, [*_OWN, *applications]).partition("Known:")[0].strip()
    return hint or f"keras.applications has {', '.join(sorted(applications))}."


def _application(function: Callable) -> Callable:
    """Adapts a function of keras.applications to `f(input_shape, num_classes)`."""
    accepted = inspect.signature(function).parameters

    def model(*, input_shape, num_classes, **arguments):
        if "include_preprocessing" in accepted:
            arguments.setdefault("include_preprocessing", False)
        return function(
            input_shape=input_shape,
            classes=num_classes,
            weights=None,
            **{"classifier_activation": None, **arguments},
        )

    model.__signature__ = inspect.Signature(
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in accepted.values()]
    )
    return model


def _with_head(name: str, function: Callable, imagenet: bool, units: int, freeze: bool):
    """Adapts `pretrained.build` to `f(input_shape, num_classes)`."""
    accepted = inspect.signature(function).parameters

    def model(*, input_shape, num_classes, **arguments):
        if "include_preprocessing" in accepted:
            arguments.setdefault("include_preprocessing", False)
        return pretrained.build(
            name, input_shape, num_classes, imagenet=imagenet,
            hidden_units=units, freeze=freeze, arguments=arguments,
        )  # fmt: skip

    top = ("include_top", "pooling", "classifier_activation", "input_tensor")
    model.__signature__ = inspect.Signature([p for n, p in accepted.items() if n not in top])
    return model


def _freeze(freeze_base: bool | str, weights: str | None) -> bool:
    if freeze_base == "auto":
        freeze = weights == "imagenet"
        reason = "auto: it has ImageNet weights" if freeze else "auto: no ImageNet weights"
    else:
        freeze, reason = freeze_base, "as asked"
    logger.info("model: the base is %s (%s)", "frozen" if freeze else "trained", reason)
    if freeze and weights is None:
        logger.warning("model: the frozen base has random weights, of which little is learnt")
    return freeze


def _check_arguments(name: str, function: Callable, arguments: dict) -> None:
    parameters = dict(inspect.signature(function).parameters)
    for argument in _GIVEN:
        parameters.pop(argument, None)
        if argument in arguments:
            raise UserError(
                f"received model.arguments.{argument}, which follows from the data and "
                "model.weights: leave it out."
            )
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for argument in arguments:
        if argument not in parameters:
            raise UserError(
                f"received model.arguments.{argument}, which {name} does not take. "
                f"{did_you_mean(argument, parameters)} "
                "--config.model.arguments={} takes all of them away."
            )


def _checked(model, name: str, num_classes: int) -> keras.Model:
    if not isinstance(model, keras.Model):
        raise UserError(
            f"model.name={name} returned {type(model).__name__}, expected a keras.Model."
        )
    if not getattr(model, "outputs", None):
        raise UserError(
            f"model.name={name} returned a model that is not built: build it from "
            "keras.Input(input_shape), as a functional or Sequential model."
        )
    outputs = [tuple(output.shape) for output in model.outputs]
    if outputs != [(None, num_classes)]:
        raise UserError(
            f"model.name={name} has outputs of shape {str(outputs)[1:-1]}, expected "
            f"(None, {num_classes}): one logit or probability for each class."
        )
    return model


def _in_float32(model: keras.Model) -> keras.Model:
    (output,) = model.outputs
    if output.dtype == "float32":
        return model
    outputs = keras.layers.Activation("linear", dtype="float32")(output)
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.inputs
    return keras.Model(inputs, outputs, name=model.name)


def _load_weights(model: keras.Model, path: str) -> None:
    try:
        if path.endswith(".keras"):
            loaded = keras.models.load_model(path, compile=False)
            model.set_weights(loaded.get_weights())
        else:
            model.load_weights(path)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise UserError(
            f"received model.weights={path}, which does not fit this model: {one_line(error)}"
        ) from error
    logger.info("model: weights from %s", path)
