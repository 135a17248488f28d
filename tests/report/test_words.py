"""Numbers as people read them."""

import math

import pytest

from tfaccel.report import words

NEEDS_TENSORFLOW = False


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0311957, "0.0312"),
        (0.0, "0"),
        (12.345, "12.3"),
        (999.4, "999"),
        (12345.6, "12,346"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (0.98886, "98.89 %"), (1, "100.00 %"), (math.nan, "nan")]
)
def test_percent(share, text):
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.7, "1 min 00 s"),
        (139.3, "2 min 19 s"),
        (3600, "1 h 00 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_duration(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (2**20, "1 MiB"), (3 * 2**29, "1.5 GiB")]
)
def test_size(count, text):
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(3.65e9, "3.65 GFLOP/s"), (1e12, "1 TFLOP/s"), (2.5e15, "2,500 TFLOP/s")],
)
def test_operations(rate, text):
    assert words.operations(rate) == text


@pytest.mark.parametrize(
    ("parts", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_joined(parts, text):
    assert words.joined(parts) == text
