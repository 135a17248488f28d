"""Handwritten digits in under a minute: no download, no GPU.

    python -m tfaccel.train --config=configs/quickstart.py

Measured on 2 cores of an AMD EPYC (AVX2), seed 0: 99.44 % on the 359 digits held
out for testing, after 8 epochs; 46 s, imports included.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.augment.crop_padding = 2
    config.model.arguments = {"width": 16}
    config.duration = "8ep"
    config.global_batch_size = 64
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 5e-4
    config.schedule.name = "one_cycle"
    return config_lib.runlocal(config) if arg == "runlocal" else config
