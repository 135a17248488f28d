"""The run's config: its schema comes from the builders' signatures.

Keyword-only arguments of a builder are the fields of its section, with the
builder's defaults and annotations; there is no second list. A builder's module
may have a `check` function of the same arguments: it runs on the config alone,
before TensorFlow is imported.

Example, a config file:

    from tfaccel import config as config_lib

    def get_config(arg=None):
        config = config_lib.default()
        config.data.name = "cifar10"
        return config_lib.runlocal(config) if arg == "runlocal" else config
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import config_dict

from tfaccel import fields, plan
from tfaccel.data import augment, normalize, sources
from tfaccel.errors import UserError, did_you_mean
from tfaccel.models import registry

SECTIONS = {
    "": (
        "tfaccel.randomness:set_seed",
        "tfaccel.plan:build",
        "tfaccel.precision:build",
        "tfaccel.step:choose",
    ),
    "devices": ("tfaccel.devices:configure",),
    "distribution": ("tfaccel.distribution:build",),
    "data": (
        "tfaccel.data.sources:load",
        "tfaccel.data.normalize:build",
        "tfaccel.data.pipeline:place",
        "tfaccel.data.pipeline:choose_jit",
    ),
    "data.augment": ("tfaccel.data.augment.shift:build",),
    "data.augment.color_jitter": ("tfaccel.data.augment.color_jitter:build",),
    "data.augment.cutout": ("tfaccel.data.augment.cutout:build",),
    "data.augment.erasing": ("tfaccel.data.augment.erasing:build",),
    "data.augment.randaugment": ("tfaccel.data.augment.randaugment:build",),
    "data.augment.resized_crop": ("tfaccel.data.augment.resized_crop:build",),
    "data.augment.trivialaugment": ("tfaccel.data.augment.trivialaugment:build",),
    "data.mixing": ("tfaccel.data.mixing:build",),
    "model": ("tfaccel.models.registry:build",),
    "batch_norm": ("tfaccel.models.batch_norm:build",),
    "optimizer": ("tfaccel.optimizers:scale_rate", "tfaccel.optimizers:build"),
    "schedule": ("tfaccel.schedules:build",),
    "ema": ("tfaccel.ema:build",),
    "pruning": ("tfaccel.pruning:build",),
    "checkpoint": ("tfaccel.checkpoint:Checkpointer",),
    "early_stopping": ("tfaccel.callbacks.early_stopping:build",),
    "guard": ("tfaccel.callbacks.guard:build",),
    "tensorboard": ("tfaccel.callbacks.tensorboard:build",),
}


def builder(target: str) -> Callable:
    """Returns the builder that "module:name" stands for."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def options(build: Callable) -> dict[str, inspect.Parameter]:
    """Returns a builder's keyword-only arguments, annotations evaluated."""
    module = inspect.getmodule(build)
    found = {}
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            annotation = parameter.annotation
            if isinstance(annotation, str):
                annotation = eval(annotation, vars(module))
            found[name] = parameter.replace(annotation=annotation)
    return found


def schema() -> dict[str, tuple[str, inspect.Parameter]]:
    """Returns every field's full name with the builder it belongs to."""
    found = {}
    for section, targets in SECTIONS.items():
        for target in targets:
            for name, parameter in options(builder(target)).items():
                full_name = f"{section}.{name}".lstrip(".")
                if full_name in found:
                    raise TypeError(f"{full_name} belongs to two builders")
                found[full_name] = (target, parameter)
    return found


def default() -> config_dict.ConfigDict:
    """Returns the locked config in which every field has its builder's default."""
    config = config_dict.ConfigDict()
    for full_name, (_, parameter) in schema().items():
        section, name = _enter(config, full_name)
        section[name] = _placeholder(parameter)
    return config.lock()


def arguments(build: Callable, section: config_dict.ConfigDict) -> dict[str, Any]:
    """Returns the keyword arguments that a section holds for one builder.

    Example:
        policy = precision.build(**arguments(precision.build, config))
    """
    values = {name: section[name] for name in options(build)}
    return {
        name: value.to_dict() if isinstance(value, config_dict.ConfigDict) else value
        for name, value in values.items()
    }


def flat(config: config_dict.ConfigDict) -> dict[str, Any]:
    """Returns a config's fields by full name; free-form dictionaries stay whole."""
    return dict(_flat_items(config, set(schema())))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns "field: old -> new" for each field in which two flat configs differ."""
    return [
        f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def update(config: config_dict.ConfigDict, flat_values: dict[str, Any]) -> None:
    """Sets a config's fields from a flat dictionary, such as a run's config.json.

    Raises:
        UserError: For a field that does not exist.
    """
    for full_name, value in flat_values.items():
        check_name(full_name)
        section, name = _enter(config, full_name)
        section[name] = config_dict.ConfigDict(value) if isinstance(value, dict) else value


def runlocal(config: config_dict.ConfigDict) -> config_dict.ConfigDict:
    """Shrinks a config to what a laptop runs in about a minute.

    Twenty steps of 32 examples; the data, the model and every lever stay.
    """
    config.duration = "20st"
    config.global_batch_size = 32
    config.log_every = "5st"
    return config


def check(config: config_dict.ConfigDict) -> None:
    """Checks all that a config alone can show; imports no TensorFlow.

    Raises:
        UserError: For an unknown or missing field, a value that does not fit,
            or a combination that cannot work.
    """
    known, found = schema(), flat(config)
    for name in found:
        check_name(name)
    for name, (_, parameter) in known.items():
        if name not in found:
            raise UserError(
                f"the config has no field {name}: start from "
                "tfaccel.config.default() and change what differs."
            )
        fields.check(parameter.annotation, found[name], name)
    for section, targets in SECTIONS.items():
        for target in targets:
            _check_with_builder(target, section, config)
    _check_combinations(config)


def check_name(name: str) -> None:
    """Raises UserError unless `name` is a field, a section or inside a free one."""
    known = schema()
    parents = {known_name.rpartition(".")[0] for known_name in known}
    free = [n for n, (_, p) in known.items() if _is_free(p)]
    if name in known or name in parents or any(name.startswith(f"{f}.") for f in free):
        return
    hint = field_hint(name)
    raise UserError(
        f"received the config field {name}, which does not exist. {hint} "
        "--print_config lists all fields.".replace("  ", " ")
    )


def field_hint(name: str) -> str:
    """Returns the fields that a wrong name may mean, as a sentence."""
    known = schema()
    ending = name.rpartition(".")[2]
    same_ending = [n for n in known if n.rpartition(".")[2] == ending]
    same_ending.sort(key=lambda n: -difflib.SequenceMatcher(None, n, name).ratio())
    if same_ending:
        return f"Did you mean {same_ending[0]}?"
    if hint := did_you_mean(name, known):
        return hint
    endings = {n.rpartition(".")[2] for n in known}
    close = difflib.get_close_matches(ending, endings, n=2, cutoff=0.6)
    near = [n for n in known if n.rpartition(".")[2] in close]
    return f"Did you mean {' or '.join(near)}?" if near else ""


def _check_with_builder(target: str, section: str, config) -> None:
    module = importlib.import_module(target.split(":")[0])
    section_config = config
    for part in filter(None, section.split(".")):
        section_config = section_config[part]
    checker = getattr(module, "check", None)
    if checker is not None and set(options(checker)) <= set(section_config):
        checker(**arguments(checker, section_config))


def _check_combinations(config) -> None:
    replicas = max(1, config.distribution.logical_cpus)
    plan.check_batch(config.global_batch_size, replicas, config.accumulation)
    stopping = config.early_stopping
    waits = stopping.patience and stopping.monitor.startswith("val_")
    if waits and not config.data.validation_share:
        raise UserError(
            f"received early_stopping.monitor={stopping.monitor} with "
            "data.validation_share=0.0: there is no validation data to watch. Keep a "
            "share of it, or watch 'loss'."
        )
    policies = config.data.augment
    if policies.randaugment.number and policies.trivialaugment.enabled:
        raise UserError(
            f"received data.augment.randaugment.number={policies.randaugment.number} and "
            "data.augment.trivialaugment.enabled=True, expected one of them: each is a "
            "whole policy."
        )
    normalize.check_model(config.data.normalize, config.data.normalize_model, config.model.name)
    registry.check_preprocessing(config.model.weights, config.data.normalize)
    shape = sources.known_shape(config.data.name, config.data.image_size)
    if shape is not None:
        augment.check_fits(shape, config.data.augment.crop_padding)


def _enter(config, full_name: str):
    *sections, name = full_name.split(".")
    for section in sections:
        if section not in config:
            config[section] = config_dict.ConfigDict()
        config = config[section]
    return config, name


def _placeholder(parameter: inspect.Parameter) -> Any:
    kind = fields.storage_type(parameter.annotation)
    if kind is dict:
        return config_dict.ConfigDict(parameter.default or {})
    if kind is object:
        return config_dict.FieldReference(parameter.default, field_type=object)
    if parameter.default is None:
        return config_dict.placeholder(kind)
    return kind(parameter.default)


def _is_free(parameter: inspect.Parameter) -> bool:
    return fields.storage_type(parameter.annotation) is dict


def _flat_items(config, leaves: set[str], prefix: str = "") -> Iterator:
    for name, value in config.items():
        full_name = f"{prefix}{name}"
        if isinstance(value, config_dict.ConfigDict):
            if full_name in leaves:
                yield full_name, value.to_dict()
            else:
                yield from _flat_items(value, leaves, f"{full_name}.")
        else:
            yield full_name, value
