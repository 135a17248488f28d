"""The types of config fields, and how a value is checked against one.

Builders annotate their keyword arguments with these; the config schema, its
checks and its error messages all follow from the annotations.
"""

import dataclasses
import math
import re
import types
import typing
from fractions import Fraction
from typing import Annotated, Any, Literal

from tfaccel.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included unless `open_low`."""

    low: float
    high: float = math.inf
    open_low: bool = False

    def __str__(self) -> str:
        above = "above" if self.open_low else "at least"
        upto = "" if math.isinf(self.high) else f" and at most {self.high}"
        return f"{above} {self.low}{upto}"

    def accepts(self, value: Any) -> bool:
        """Returns whether a number (never NaN) lies in the range."""
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and not math.isinf(value)


@dataclasses.dataclass(frozen=True)
class DurationText:
    """Text such as "3ep", "500st" or "20%" (of the run)."""

    share_allowed: bool = True

    def __str__(self) -> str:
        share = ", '20%' of the run" if self.share_allowed else ""
        return f"a duration such as '3ep' (epochs) or '500st' (steps){share}"

    def accepts(self, value: Any) -> bool:
        """Returns whether a text is a duration."""
        match = _DURATION.fullmatch(value)
        if match is None or (match["unit"] == "%" and not self.share_allowed):
            return False
        return match["unit"] != "st" or "." not in match["amount"]


_DURATION = re.compile(r"(?P<amount>\d+(\.\d+)?)(?P<unit>ep|st|%)")

Count = Annotated[int, Range(0)]
PositiveInt = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
Share = Annotated[float, Range(0, 1)]
Duration = Annotated[str, DurationText()]
RunLength = Annotated[str, DurationText(share_allowed=False)]
Flag = Literal["auto"] | bool


def duration_steps(
    duration: str, *, steps_per_epoch: Fraction, total_steps: int | None = None
) -> int:
    """Returns a duration as a number of steps.

    The one place where durations are resolved. An epoch that ends within a
    step counts that step, so every example of it was seen.

    Args:
        duration: "3ep", "500st" or, where `total_steps` is known, "20%".
        steps_per_epoch: Examples divided by the global batch size.
        total_steps: Length of the whole run in steps.

    Raises:
        UserError: If the text is no duration.

    Example:
        >>> duration_steps("3ep", steps_per_epoch=Fraction(101, 10))
        31
    """
    check(Duration if total_steps is not None else RunLength, duration, "duration")
    match = _DURATION.fullmatch(duration)
    amount = Fraction(match["amount"])
    if match["unit"] == "st":
        return int(amount)
    if match["unit"] == "%":
        return round(amount * total_steps / 100)
    return math.ceil(amount * steps_per_epoch)


def storage_type(annotation: Any) -> type:
    """Returns the type a config field stores: one type, or `object` if several."""
    kinds = {kind for kind in _plain_types(annotation) if kind is not type(None)}
    return kinds.pop() if len(kinds) == 1 else object


def check(annotation: Any, value: Any, name: str) -> Any:
    """Returns `value` if it fits the annotation.

    Args:
        annotation: A type, a `Literal`, a union, or `Annotated` with a `Range`
            or `DurationText`.
        value: What was received.
        name: The field's full name, for the message.

    Raises:
        UserError: If it does not fit; one line that names the field.
    """
    if _fits(annotation, value):
        is_number = value is not None and storage_type(annotation) is float
        return float(value) if is_number else value
    received = f"received {name}={value!r}"
    choices = _choices(annotation)
    hint = ""
    if choices and isinstance(value, str):
        hint = did_you_mean(value, choices).split("Known:")[0].strip()
    texts = [f"{value}{unit}" for unit in ("ep", "st")]
    rules = [rule for rule in _rules(annotation) if isinstance(rule, DurationText)]
    fitting = [f"{name}={text}" for text in texts if any(r.accepts(text) for r in rules)]
    unit = f" Write {' or '.join(fitting)}." if fitting else ""
    expected = f"expected {describe(annotation)}."
    raise UserError(f"{received}, {expected} {hint}{unit}".replace("  ", " ").strip())


def describe(annotation: Any) -> str:
    """Returns an annotation in words."""
    if annotation is type(None):
        return "None"
    if _is_union(annotation):
        return " or ".join(describe(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(c) for c in typing.get_args(annotation))
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    words |= {str: "text", dict: "a dictionary"}
    if typing.get_origin(annotation) is Annotated:
        base, *rules = typing.get_args(annotation)
        if any(isinstance(rule, DurationText) for rule in rules):
            return str(rules[0])
        return f"{words[base]} {', '.join(map(str, rules))}"
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _plain_types(annotation: Any) -> set[type]:
    if _is_union(annotation):
        parts = typing.get_args(annotation)
        return set().union(*(_plain_types(part) for part in parts))
    if typing.get_origin(annotation) is Literal:
        return {type(choice) for choice in typing.get_args(annotation)}
    if typing.get_origin(annotation) is Annotated:
        return {typing.get_args(annotation)[0]}
    return {annotation}


def _choices(annotation: Any) -> list[str]:
    if _is_union(annotation):
        return [c for part in typing.get_args(annotation) for c in _choices(part)]
    if typing.get_origin(annotation) is Literal:
        return [str(choice) for choice in typing.get_args(annotation)]
    return []


def _rules(annotation: Any) -> tuple:
    if _is_union(annotation):
        return tuple(r for part in typing.get_args(annotation) for r in _rules(part))
    if typing.get_origin(annotation) is Annotated:
        return typing.get_args(annotation)[1:]
    return ()


def _fits(annotation: Any, value: Any) -> bool:
    if _is_union(annotation):
        return any(_fits(part, value) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        choices = typing.get_args(annotation)
        return any(value == c and type(value) is type(c) for c in choices)
    if typing.get_origin(annotation) is Annotated:
        base, *rules = typing.get_args(annotation)
        return _fits(base, value) and all(rule.accepts(value) for rule in rules)
    if annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is dict:
        return hasattr(value, "items")
    return isinstance(value, annotation)
