"""Checkpoints: all of a run's variables, written whole or not at all.

Variables are saved as a flat list with a manifest of ours, because a
`tf.train.Checkpoint` of model and optimizer objects silently leaves out Dropout's
states and refuses Keras's metrics.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tfaccel import callback_state, fields
from tfaccel.errors import UserError, one_line
from tfaccel.fields import Duration, PositiveInt
from tfaccel.lazy import tf
from tfaccel.log import logger

_PREFIX = "step_"
_MANIFEST = "manifest.json"


class Checkpointer:
    """Saves and restores a run in a folder of checkpoints.

    Args:
        directory: Where checkpoints go; made when the first is saved.
        plan: The run's length, to resolve `every` (see `tfaccel.plan`).
        every: How often to save, such as "1ep" or "500st"; "0st" never.
        keep: How many of the newest checkpoints to keep.

    Example:
        checkpointer = Checkpointer("run/checkpoints", length, every="500st")
        tfaccel.fit(model, data, length, checkpointer=checkpointer)
    """

    def __init__(
        self, directory: Path, plan, *, every: Duration = "1ep", keep: PositiveInt = 2
    ):
        self.directory = Path(directory)
        self.every_epochs = _whole_epochs(every)
        self.every_steps = None if self.every_epochs else plan.steps(every)
        self.keep = keep

    @property
    def enabled(self) -> bool:
        """Whether anything is ever saved."""
        return bool(self.every_epochs or self.every_steps)

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which to save, between epochs."""
        if not self.every_steps:
            return None
        return (step // self.every_steps + 1) * self.every_steps

    def due(self, step: int, epochs_ended: int | None = None) -> bool:
        """Returns whether to save now.

        Args:
            step: Updates done.
            epochs_ended: How many epochs have ended, where one just did.
        """
        if self.every_epochs:
            return epochs_ended is not None and epochs_ended % self.every_epochs == 0
        return bool(self.every_steps) and step % self.every_steps == 0

    def save(
        self, variables: list, state: dict[str, Any], arrays=None, chief: bool = True
    ) -> Path:
        """Writes a checkpoint under a temporary name, then renames it.

        Args:
            variables: Keras variables, in a fixed order.
            state: What JSON can hold, with the "step".
            arrays: NumPy arrays by name that belong to the state.
            chief: Whether this worker's checkpoint is the one that is kept. All
                must call this, as reading a variable may take all of them.

        Returns:
            The checkpoint's folder.
        """
        final = self.directory / f"{_PREFIX}{state['step']:09d}"
        if not chief:
            with tempfile.TemporaryDirectory() as unused:
                _tracked(variables).write(str(Path(unused) / "variables"))
            return final
        partial = self.directory / f".partial_{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _tracked(variables).write(str(partial / "variables"))
            callback_state.write_arrays(partial, arrays or {})
            manifest = {"variables": _describe(variables), "state": state}
            (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, one_line(error), str(partial)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def all(self) -> list[Path]:
        """Returns the complete checkpoints, oldest first."""
        return sorted(
            path for path in self.directory.glob(f"{_PREFIX}*") if (path / _MANIFEST).exists()
        )

    def newest(self) -> Path | None:
        """Returns the newest complete checkpoint, or None."""
        found = self.all()
        return found[-1] if found else None

    def read_state(self, path: Path) -> dict[str, Any]:
        """Returns the state that was saved with a checkpoint."""
        return _read_manifest(path)["state"]

    def restore(self, path: Path, variables: list) -> None:
        """Puts a checkpoint's values into the variables.

        Raises:
            UserError: If the checkpoint is damaged, or holds other variables.
        """
        saved, present = _read_manifest(path)["variables"], _describe(variables)
        for index, (old, new) in enumerate(zip(saved, present, strict=False)):
            if (old["shape"], old["dtype"]) != (new["shape"], new["dtype"]):
                raise UserError(
                    f"{path} holds {_words(old)} as variable {index}, expected "
                    f"{_words(new)}: it is of another model or optimizer."
                )
        if len(saved) != len(present):
            raise UserError(
                f"{path} holds {len(saved)} variables, expected {len(present)}: it is of "
                "another model or optimizer."
            )
        try:
            _tracked(variables).read(str(path / "variables")).assert_consumed()
        except (tf.errors.OpError, AssertionError, IndexError, ValueError) as error:
            raise UserError(
                f"{path} is damaged ({one_line(error, 120)}): delete the folder to go on "
                "from the checkpoint before it."
            ) from error
        logger.info("checkpoint: restored %s", path)


def _whole_epochs(every: str) -> int:
    fields.check(Duration, every, "checkpoint.every")
    amount = every.removesuffix("ep")
    return int(amount) if every.endswith("ep") and amount.isdigit() else 0


def _tracked(variables: list) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(**{f"v{i}": v.value for i, v in enumerate(variables)})


def _describe(variables: list) -> list[dict[str, Any]]:
    return [
        {"path": v.path, "shape": [int(size) for size in v.shape], "dtype": v.dtype}
        for v in variables
    ]


def _words(variable: dict[str, Any]) -> str:
    shape = "x".join(map(str, variable["shape"])) or "scalar"
    return f"{variable['path']} ({shape} {variable['dtype']})"


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / _MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no readable checkpoint: {one_line(error)}") from error
