"""VGG-16 with ImageNet weights on CIFAR-10: the classic of the textbooks, done right.

    python -m tfaccel.train --config=configs/cifar10_vgg16_transfer.py

VGG16 without its top, global average pooling, Dense 128 with ReLU, Dense 10; Adam,
batch 128, ten epochs. The base is frozen; to train it, too, with a smaller rate:

    --config.model.freeze_base=false --config.optimizer.learning_rate=1e-5

The weights are fetched by Keras once. Without a network place
vgg16_weights_tf_dim_ordering_tf_kernels_notop.h5 in ~/.keras/models, or start from
random weights with --config.model.weights=None (and expect little).

Why the common version, which divides pixels by 255, fails: these weights were trained
on images of 0..255 with blue first, less the mean of each channel. Fed with 0..1 and
red first, the first layer sees a hundredth of the contrast that it expects in channels
that are swapped, and what it tells apart is mostly its own biases. A base that is
trained as well, at Adam's usual 1e-3, then loses what it knew, and as VGG16 has no batch
normalisation it often stays at the loss ln(10) = 2.303 and 10 % for good.
data.normalize=model takes the preprocessing from the model.

Not measured yet: the weights were not at hand.
"""

from tfaccel import config as config_lib


def get_config(arg=None):
    """Returns the config; ":runlocal" shrinks it to 20 steps."""
    config = config_lib.default()
    config.data.name = "cifar10"
    config.data.normalize = "model"
    config.model.name = "VGG16"
    config.model.weights = "imagenet"
    config.model.head = "pooled"
    config.model.hidden_units = 128
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.schedule.name = "constant"
    return config_lib.runlocal(config) if arg == "runlocal" else config
