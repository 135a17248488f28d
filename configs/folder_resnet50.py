"""ResNet-50 on your own images: a folder with one folder for each class.

    python -m tfaccel.train --config=configs/folder_resnet50.py --config.data.dir=FOLDER

FOLDER holds train/ and test/ (or val/) with the class folders in them, or the class
folders themselves, of which a fifth is then kept to test on. Images may be of any size:
training cuts a random part, evaluation the middle, brought to 224 pixels.

Look at the data first: python -m tfaccel.data with the same flags and --show=16.
With few images (some hundreds a class) start from ImageNet weights instead:

    --config.model.name=ResNet50 --config.model.weights=imagenet
    --config.model.head=pooled --config.data.normalize=model

Not measured yet: how well it does depends on your images.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "folder"
    config.data.image_size = 224
    config.data.augment.flip = True
    config.model.name = "resnet50"
    config.duration = "90ep"
    config.optimizer.learning_rate_unit = "per_256"
    config.optimizer.arguments = {"momentum": 0.9, "nesterov": True}
    config.optimizer.weight_decay = 1e-4
    config.schedule.warmup = "5%"
    return config_lib.runlocal(config) if arg == "runlocal" else config
