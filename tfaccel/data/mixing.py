"""MixUp, CutMix and label smoothing: training on soft labels."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfaccel import randomness
from tfaccel.data.augment import boxes
from tfaccel.errors import UserError
from tfaccel.fields import NonNegative, Share
from tfaccel.lazy import keras, tf

# Shares of the other image are drawn from a table of the distribution.
_QUANTILES = 1 << 12


def check(*, mixup: NonNegative, cutmix: NonNegative, label_smoothing: Share) -> None:
    """Refuses labels that say nothing."""
    del mixup, cutmix
    if label_smoothing == 1:
        raise UserError(
            "received data.mixing.label_smoothing=1.0, expected less than 1: every label "
            "would be the same. 0.1 is usual."
        )


def build(
    *, mixup: NonNegative = 0.0, cutmix: NonNegative = 0.0, label_smoothing: Share = 0.0
) -> Mixing | None:
    """Returns how images and labels are mixed, or None if they are not.

    With both given, each example draws one of the two. Labels become shares of each
    class, float32 [n, classes], whose rows sum to 1: they need the loss
    `keras.losses.CategoricalCrossentropy`.

    Args:
        mixup: Alpha of MixUp's Beta distribution (Zhang et al., "mixup: Beyond
            Empirical Risk Minimization", 2017); 0 for none, 0.2 is usual.
        cutmix: Alpha of CutMix's (Yun et al., "CutMix", 2019); 0 for none, 1.0 is
            usual.
        label_smoothing: Share of each label that is spread over all classes
            (Szegedy et al., "Rethinking the Inception Architecture", 2015); 0.1 is
            usual.

    Example:
        mixing = tfaccel.data.mixing.build(mixup=0.2, label_smoothing=0.1)
        images, labels = mixing(images, labels, keys, num_classes=10)
    """
    check(mixup=mixup, cutmix=cutmix, label_smoothing=label_smoothing)
    if not (mixup or cutmix or label_smoothing):
        return None
    return Mixing(mixup, cutmix, label_smoothing)


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Mixes images and labels with those of a partner; see `build`."""

    mixup: float
    cutmix: float
    label_smoothing: float

    @property
    def needs_partners(self) -> bool:
        """Whether images are mixed; labels may be smoothed without."""
        return bool(self.mixup or self.cutmix)

    def __call__(self, images, labels, keys, num_classes: int, partners=None):
        """Returns a batch with mixed images and soft labels.

        Args:
            images: uint8 or floating point [n, height, width, channels].
            labels: int32 [n].
            keys: uint32 [n]; an example's key decides how it is mixed.
            num_classes: How many classes there are.
            partners: (images, labels) to mix with, in the same order; by default
                each example's is the next of the batch.

        Returns:
            (images of the same shape and dtype, labels float32 [n, num_classes]).
        """
        other, other_labels = partners or [tf.roll(t, -1, axis=0) for t in (images, labels)]
        kept = tf.ones(tf.shape(labels))
        if self.needs_partners:
            images, kept = self._mixed(images, other, keys)
        return images, self._soft(labels, other_labels, kept, num_classes)

    def _soft(self, labels, other_labels, kept, num_classes: int):
        """Returns the shares of the classes; sums of few terms, so that XLA agrees."""
        classes, sure = tf.range(num_classes), np.float32(1 - self.label_smoothing)
        own, others = (
            tf.where(chosen[:, None] == classes, (sure * share)[:, None], 0.0)
            for chosen, share in ((labels, kept), (other_labels, 1 - kept))
        )
        return own + others + np.float32(self.label_smoothing / num_classes)

    def _mixed(self, images, other, keys):
        """Returns (images, the share of each that is still its own, float32 [n])."""
        if not self.cutmix:
            return _mixup(images, other, self._share(keys, self.mixup))
        if not self.mixup:
            return _cutmix(images, other, keys, self._share(keys, self.cutmix))
        cut, cut_share = _cutmix(images, other, keys, self._share(keys, self.cutmix))
        mixed, mixed_share = _mixup(images, other, self._share(keys, self.mixup))
        cuts = randomness.draw(keys, "mixing", 2) == 1
        images = tf.where(cuts[:, None, None, None], cut, mixed)
        return images, tf.where(cuts, cut_share, mixed_share)

    def _share(self, keys, alpha: float):
        """Draws from Beta(alpha, alpha), float32 [n]."""
        table = tf.constant(_beta_quantiles(alpha))
        return tf.gather(table, randomness.draw(keys, "mixing share", _QUANTILES))


def check_loss(model: keras.Model) -> None:
    """Refuses a model whose loss takes whole-number labels only.

    Args:
        model: A compiled model that is to train on soft labels.

    Raises:
        UserError: Names the loss that takes shares.
    """
    sparse = (keras.losses.SparseCategoricalCrossentropy, "sparse_categorical_crossentropy")
    if model.loss == sparse[1] or isinstance(model.loss, sparse[0]):
        raise UserError(
            "received the loss SparseCategoricalCrossentropy for labels that are mixed or "
            "smoothed, expected keras.losses.CategoricalCrossentropy (with "
            "keras.metrics.CategoricalAccuracy), which take a share for each class."
        )


def partner_places(places, global_batch_size: int, seed: int) -> tf.Tensor:
    """Returns the place in the training stream of each example's partner.

    Partners are other places of the same global batch, a random distance on, the
    same distance for the whole step: so they do not depend on how the batch is
    shared out.

    Args:
        places: int64 [n], counted from the start of training, all of one step.
        global_batch_size: Examples a step takes, over all replicas.
        seed: The run's seed.

    Returns:
        int64 [n].
    """
    step = places[0] // global_batch_size
    bits = randomness.mix(seed, step, randomness.purpose("partners"))
    distance = 1 + randomness.below(bits, max(1, global_batch_size - 1))
    start = step * global_batch_size
    return start + (places - start + tf.cast(distance, tf.int64)) % global_batch_size


def _mixup(images, other, share):
    """Adds up two images; uint8 in whole numbers, which round alike everywhere."""
    weights = share[:, None, None, None]
    if images.dtype != tf.uint8:
        return images * weights + other * (1 - weights), share
    one = 1 << 16
    weights = tf.cast(tf.round(weights * one), tf.int32)
    own, others = tf.cast(images, tf.int32), tf.cast(other, tf.int32)
    mixed = tf.bitwise.right_shift(own * weights + others * (one - weights) + one // 2, 16)
    return tf.cast(mixed, tf.uint8), share


def _cutmix(images, other, keys, share):
    """Puts a part of the other image in the same place of each image."""
    rows, columns = images.shape[1:3]
    side = tf.sqrt(tf.cast(1 - share, tf.float64))
    height, width = (tf.cast(tf.round(side * length), tf.int32) for length in (rows, columns))
    top = randomness.draw(keys, "cutmix top", rows) - height // 2
    left = randomness.draw(keys, "cutmix left", columns) - width // 2
    inside = boxes.mask(images, top, left, height, width)
    covered = tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2, 3))
    return tf.where(inside, other, images), 1 - covered


def _beta_quantiles(alpha: float) -> np.ndarray:
    from scipy import special

    middles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return special.betaincinv(alpha, alpha, middles).astype(np.float32)
