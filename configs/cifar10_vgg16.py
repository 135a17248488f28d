"""VGG-16 with batch normalisation on CIFAR-10, from scratch.

    python -m tfaccel.train --config=configs/cifar10_vgg16.py

Measured on 2 cores of an AMD EPYC (AVX2), seed 0, images re-encoded as JPEG, with
--config.duration=300st --config.global_batch_size=32: 47.50 % on the 10,000 test
images in 12 minutes; mean loss 2.69 over the first 50 steps, 1.50 over the last. The
sixty epochs of the default are meant for a GPU and have not been run yet.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "cifar10"
    config.data.validation_share = 0.02
    config.data.augment.crop_padding = 4
    config.data.augment.flip = True
    config.model.name = "vgg16"
    config.duration = "60ep"
    config.global_batch_size = 256
    config.optimizer.learning_rate = 0.05
    config.optimizer.learning_rate_unit = "per_256"
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup = "5%"
    return config_lib.runlocal(config) if arg == "runlocal" else config
