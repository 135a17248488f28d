"""Numbers as people read them."""

from __future__ import annotations

import math

UNKNOWN = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Returns a number with few digits; None as a dash.

    Example:
        >>> number(0.0311957448720932)
        '0.0312'
        >>> number(12345.6)
        '12,346'
    """
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(float(value))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def percent(share: float | None, digits: int = 2) -> str:
    """Returns a share of 1 in percent.

    Example:
        >>> percent(0.98886)
        '98.89 %'
    """
    if share is None or not math.isfinite(share):
        return number(share)
    return f"{100 * share:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """Returns seconds in words, the two largest units.

    Example:
        >>> duration(139.3)
        '2 min 19 s'
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def size(count: float | None) -> str:
    """Returns bytes in MiB or GiB.

    Example:
        >>> size(3 * 2**29)
        '1.5 GiB'
    """
    if count is None:
        return UNKNOWN
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def operations(rate: float) -> str:
    """Returns floating-point operations a second.

    Example:
        >>> operations(3.65e9)
        '3.65 GFLOP/s'
    """
    power, prefix = (12, "T") if rate >= 1e12 else (9, "G")
    return f"{number(rate / 10**power)} {prefix}FLOP/s"


def joined(parts: list[str]) -> str:
    """Returns a list as a phrase.

    Example:
        >>> joined(["cifar10", "digits", "mnist"])
        'cifar10, digits and mnist'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
