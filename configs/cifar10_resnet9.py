"""ResNet-9 on CIFAR-10: the quick way to a good accuracy.

    python -m tfaccel.train --config=configs/cifar10_resnet9.py

Measured on 2 cores of an AMD EPYC (AVX2), seed 0, images re-encoded as JPEG (which
costs a point or two), with --config.duration=2ep --config.jit=true: 78.58 % on the
10,000 test images after 383 steps in 72 minutes, other work on the machine beside it.
The ten epochs of the default are meant for a GPU and have not been run yet.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "cifar10"
    config.data.validation_share = 0.02
    config.data.augment.crop_padding = 4
    config.data.augment.flip = True
    config.global_batch_size = 256
    config.optimizer.learning_rate = 0.25
    config.optimizer.learning_rate_unit = "per_256"
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 5e-4
    config.schedule.name = "one_cycle"
    config.schedule.warmup = "20%"
    return config_lib.runlocal(config) if arg == "runlocal" else config
