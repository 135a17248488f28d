"""Pruning; the section exists so that asking for it is answered."""

from __future__ import annotations

from tfaccel.errors import UserError
from tfaccel.fields import Share


def check(*, final_sparsity: Share) -> None:
    """Refuses any pruning for now."""
    if final_sparsity:
        raise UserError(
            f"received pruning.final_sparsity={final_sparsity}: pruning is not there "
            "yet. Leave the field at 0; it comes with a later release."
        )


def build(*, final_sparsity: Share = 0.0) -> None:
    """Refuses pruning, which is not built yet, rather than ignore it.

    Args:
        final_sparsity: Share of weights to prune; only 0 is accepted for now.

    Raises:
        UserError: Unless `final_sparsity` is 0.
    """
    check(final_sparsity=final_sparsity)
