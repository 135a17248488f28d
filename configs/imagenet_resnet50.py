"""ResNet-50 on ImageNet, from TFDS in array_record files.

    python -m tfaccel.train --config=configs/imagenet_resnet50.py --config.data.dir=FOLDER

FOLDER holds the set as `tfds build imagenet2012 --file_format=array_record
--data_dir=FOLDER` writes it; the archives must be fetched by hand, as ImageNet asks for
an account. Images are read and decoded as needed, so it need not fit in memory; that
takes pip install 'tfaccel[array_record]'. From class folders (train/ and val/):
--config.data.name=folder.

The settings are those of Goyal et al., "Accurate, Large Minibatch SGD" (2017), who
reach 76.3 % with them. Meant for GPUs; not run here yet.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "imagenet2012"
    config.data.image_size = 224
    config.data.validation_share = 0.01
    config.data.augment.flip = True
    config.model.name = "resnet50"
    config.duration = "90ep"
    config.global_batch_size = 256
    config.optimizer.learning_rate_unit = "per_256"
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 1e-4
    config.schedule.warmup = "5ep"
    return config_lib.runlocal(config) if arg == "runlocal" else config
