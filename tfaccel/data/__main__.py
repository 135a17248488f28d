"""Inspects the data of a config, and draws them as they are augmented.

python -m tfaccel.data --config=configs/quickstart.py --show=16 --out=grid.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_dict

from tfaccel import assembly, cli, config_flag, devices, randomness
from tfaccel import config as config_lib
from tfaccel.config import arguments
from tfaccel.data import inspection, sources
from tfaccel.data.source import read_errors
from tfaccel.errors import UserError, one_line

USAGE = """Shows what a config's data are like, before anybody trains on them.

    python -m tfaccel.data --config=configs/quickstart.py --show=16 --out=grid.png
    python -m tfaccel.data --config=folder_resnet50 --config.data.dir=FOLDER

Prints sizes, class counts, duplicates, unreadable files and the images a second of each
stage of the input; --show draws training examples as they are augmented."""


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = flags.FlagValues()
    flags.DEFINE_integer(
        "show", 0, "How many training examples to draw.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "out", "grid.png", "Where to draw them, a .png or .jpg file.", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "scan",
        True,
        "Read every image once, to find duplicates and unreadable files.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "seconds", 3.0, "How long to measure each stage; 0 for not at all.",
        flag_values=flag_values,
    )  # fmt: skip
    argv = config_flag.define(flag_values, argv)
    if not config_flag.parse(flag_values, argv, USAGE):
        return 0
    _check(flag_values)
    config_lib.check(flag_values.config)
    inspect(
        flag_values.config,
        show=flag_values.show,
        out=Path(flag_values.out),
        scan=flag_values.scan,
        seconds=flag_values.seconds,
    )
    return 0


@read_errors()
def inspect(
    config: config_dict.ConfigDict, *, show: int, out: Path, scan: bool, seconds: float
) -> None:
    """Prints what the data of a config are like.

    Args:
        config: A config that `tfaccel.config.check` accepts.
        show: How many training examples to draw; 0 for none.
        out: Where to draw them.
        scan: Whether to read every image once.
        seconds: How long to measure each stage; 0 for not at all.
    """
    if scan:
        # Faults are what is looked for: all of them, not the first.
        config = config.copy_and_resolve_references()
        config.data.on_bad_image = "skip"
    cli.start_tensorflow()
    devices.configure(**arguments(devices.configure, config.devices))
    seed = randomness.set_seed(**arguments(randomness.set_seed, config))
    splits = sources.load(**arguments(sources.load, config.data))
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    parts = {split: source for split, source in parts.items() if source is not None}
    print(inspection.sizes(splits.train))
    for split, source in parts.items():
        print(f"{split}: {len(source):,} examples; {inspection.classes(source)}")
    if scan:
        for line in [*inspection.duplicates(parts), *inspection.unreadable(parts)]:
            print(line)
    training, *_ = assembly.build_data(config, splits, seed)
    if show:
        inspection.grid(training, show).save(out)
        print(f"drawn: {show} training examples in {out}")
    if seconds:
        for stage, speed in inspection.speeds(training, seconds):
            print(f"{stage:<24} {speed:10,.0f} images/s")


def _check(flag_values) -> None:
    out = Path(flag_values.out)
    if flag_values.show < 0 or flag_values.seconds < 0:
        raise UserError("received a negative --show or --seconds, expected 0 or more.")
    if not flag_values.show:
        return
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UserError(f"received --out={out}, expected a file that ends in .png or .jpg.")
    if not out.parent.is_dir():
        raise UserError(f"received --out={out}, but there is no folder {out.parent}.")
    try:
        with out.open("ab"):
            pass
        if not out.stat().st_size:
            out.unlink()
    except OSError as error:
        raise UserError(
            f"received --out={out}, which cannot be written: {one_line(error)}"
        ) from (error)


if __name__ == "__main__":
    sys.exit(cli.main(run))
