import math
from fractions import Fraction
from typing import Annotated, Literal, Optional

import pytest

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.fields import Count, Duration, Flag, NonNegative, Positive, PositiveInt, Share

NEEDS_TENSORFLOW = False

Colour = Literal["red", "green"]
Threads = Literal["auto"] | PositiveInt
SOME_DURATION = "a duration such as '3ep' (epochs) or '500st' (steps)"


@pytest.mark.parametrize(
    ("duration", "steps_per_epoch", "total_steps", "expected"),
    [
        ("3ep", Fraction(10), None, 30),
        # 30.3 steps: the 31st holds examples of the third epoch.
        ("3ep", Fraction(101, 10), None, 31),
        ("0.5ep", Fraction(101, 10), None, 6),
        # In floating point 0.1 * 30 is just above 3, which would round up to 4.
        ("0.1ep", Fraction(30), None, 3),
        ("0ep", Fraction(101, 10), None, 0),
        ("500st", Fraction(101, 10), None, 500),
        ("0st", Fraction(101, 10), None, 0),
        ("500st", Fraction(101, 10), 243, 500),
        ("20%", Fraction(101, 10), 243, 49),
        ("0%", Fraction(101, 10), 243, 0),
        ("12.5%", Fraction(101, 10), 800, 100),
        ("100%", Fraction(101, 10), 243, 243),
    ],
)
def test_duration_steps(duration, steps_per_epoch, total_steps, expected):
    steps = fields.duration_steps(
        duration, steps_per_epoch=steps_per_epoch, total_steps=total_steps
    )
    assert steps == expected
    assert type(steps) is int


@pytest.mark.parametrize(
    ("duration", "total_steps", "message"),
    [
        ("3", None, f"received duration='3', expected {SOME_DURATION}. "
                    "Write duration=3ep or duration=3st."),
        ("2.5", None, f"received duration='2.5', expected {SOME_DURATION}. "
                      "Write duration=2.5ep."),
        ("-3ep", None, f"received duration='-3ep', expected {SOME_DURATION}."),
        ("3x", None, f"received duration='3x', expected {SOME_DURATION}."),
        ("1.5st", None, f"received duration='1.5st', expected {SOME_DURATION}."),
        ("ep", None, f"received duration='ep', expected {SOME_DURATION}."),
        ("3 ep", None, f"received duration='3 ep', expected {SOME_DURATION}."),
        ("3ep\n", None, f"received duration='3ep\\n', expected {SOME_DURATION}."),
        ("", None, f"received duration='', expected {SOME_DURATION}."),
        (3, None, f"received duration=3, expected {SOME_DURATION}. "
                  "Write duration=3ep or duration=3st."),
        # A share of a run whose length is not known yet.
        ("20%", None, f"received duration='20%', expected {SOME_DURATION}."),
        ("20", 100, f"received duration='20', expected {SOME_DURATION}, '20%' of the run. "
                    "Write duration=20ep or duration=20st."),
    ],
)  # fmt: skip
def test_duration_steps_refuses(duration, total_steps, message):
    with pytest.raises(UserError) as error:
        fields.duration_steps(duration, steps_per_epoch=Fraction(10), total_steps=total_steps)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, -3),
        (bool, False),
        (str, ""),
        (dict, {"momentum": 0.9}),
        (Colour, "red"),
        (Count, 0),
        (PositiveInt, 1),
        (Duration, "20%"),
        (str | None, None),
        (str | None, "text"),
        (PositiveInt | None, None),
        (PositiveInt | None, 3),
        (Flag, "auto"),
        (Flag, True),
        (Flag, False),
        (Threads, "auto"),
        (Threads, 3),
    ],
)
def test_check_returns_what_fits(annotation, value):
    assert fields.check(annotation, value, "field") is value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, -3),
        (NonNegative, 0),
        (Positive, 1),
        (Positive, 5e-324),
        (Share, 0),
        (Share, 1),
        (Share, 0.5),
    ],
)
def test_check_returns_numbers_as_floats(annotation, value):
    checked = fields.check(annotation, value, "field")
    assert checked == value
    assert type(checked) is float


@pytest.mark.parametrize("annotation", [float | None, Share | None])
def test_check_leaves_an_optional_number_out(annotation):
    assert fields.check(annotation, None, "field") is None


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, 1.5, "received field=1.5, expected a whole number."),
        (int, "3", "received field='3', expected a whole number."),
        # In Python a bool is an int.
        (int, True, "received field=True, expected a whole number."),
        (float, "fast", "received field='fast', expected a number."),
        (float, True, "received field=True, expected a number."),
        (bool, 1, "received field=1, expected true or false."),
        (str, 3, "received field=3, expected text."),
        (dict, [1], "received field=[1], expected a dictionary."),
        (Count, -1, "received field=-1, expected a whole number at least 0."),
        (PositiveInt, 0, "received field=0, expected a whole number at least 1."),
        (PositiveInt, True, "received field=True, expected a whole number at least 1."),
        (NonNegative, -0.5, "received field=-0.5, expected a number at least 0."),
        (NonNegative, math.nan, "received field=nan, expected a number at least 0."),
        (NonNegative, math.inf, "received field=inf, expected a number at least 0."),
        (Positive, 0, "received field=0, expected a number above 0."),
        (Positive, math.nan, "received field=nan, expected a number above 0."),
        (Share, 1.5, "received field=1.5, expected a number at least 0 and at most 1."),
        (Share, -0.1, "received field=-0.1, expected a number at least 0 and at most 1."),
        (Share, math.nan, "received field=nan, expected a number at least 0 and at most 1."),
        (Colour, "geen", "received field='geen', expected one of red, green. "
                         "Did you mean green?"),
        (Colour, "blue", "received field='blue', expected one of red, green."),
        (Colour, 1, "received field=1, expected one of red, green."),
        (Flag, "maybe", "received field='maybe', expected one of auto or true or false."),
        (Flag, 1, "received field=1, expected one of auto or true or false."),
        (Threads, 0, "received field=0, expected one of auto or a whole number at least 1."),
        (Threads, True,
         "received field=True, expected one of auto or a whole number at least 1."),
        (Threads, "atuo", "received field='atuo', expected one of auto or a whole number at "
                          "least 1. Did you mean auto?"),
        (str | None, 3, "received field=3, expected text or None."),
        (PositiveInt | None, 0,
         "received field=0, expected a whole number at least 1 or None."),
        (Duration, "3", f"received field='3', expected {SOME_DURATION}, '20%' of the run. "
                        "Write field=3ep or field=3st."),
    ],
)  # fmt: skip
def test_check_says_what_it_received_and_expected(annotation, value, message):
    with pytest.raises(UserError) as error:
        fields.check(annotation, value, "field")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, int),
        (bool, bool),
        (dict | None, dict),
        (str | None, str),
        (Optional[str], str),  # noqa: UP045
        (PositiveInt | None, int),
        (Count, int),
        (Share, float),
        (Duration, str),
        (Colour, str),
        # A field that holds either cannot be a typed one.
        (Flag, object),
        (Threads, object),
        (Annotated[int, fields.Range(0, 9)], int),
    ],
)
def test_storage_type(annotation, expected):
    assert fields.storage_type(annotation) is expected


@pytest.mark.parametrize(
    ("bounds", "text", "inside", "outside"),
    [
        (fields.Range(0), "at least 0", [0, 1e9], [-1, math.inf, math.nan]),
        (fields.Range(0, open_low=True), "above 0", [1e-9], [0, math.inf, math.nan]),
        (fields.Range(2, 9), "at least 2 and at most 9", [2, 9], [1.9, 9.1, math.nan]),
    ],
)
def test_range(bounds, text, inside, outside):
    assert str(bounds) == text
    assert all(bounds.accepts(value) for value in inside)
    assert not any(bounds.accepts(value) for value in outside)
