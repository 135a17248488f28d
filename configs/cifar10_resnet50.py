"""ResNet-50 on CIFAR-10, with the 3x3 stem for small images.

    python -m tfaccel.train --config=configs/cifar10_resnet50.py

On 2 cores of an AMD EPYC (AVX2), seed 0, images re-encoded as JPEG, with
--config.duration=300st --config.global_batch_size=64, the mean loss was 2.233 over the
first 50 steps and 1.776 over the last (0.80 of it: 0.795), at 5 to 17 s a step beside
other work; 37.4 % of the 1,000 validation images were right. The sixty epochs of the
default are meant for a GPU and have not been run yet.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "cifar10"
    config.data.validation_share = 0.02
    config.data.augment.crop_padding = 4
    config.data.augment.flip = True
    config.model.name = "resnet50"
    config.duration = "60ep"
    config.global_batch_size = 256
    config.optimizer.learning_rate_unit = "per_256"
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup = "5%"
    return config_lib.runlocal(config) if arg == "runlocal" else config
