"""From a source to batches: a pure function of the seed and the step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from tfaccel import fields, randomness
from tfaccel.data import mixing as mixing_lib
from tfaccel.data import order
from tfaccel.data.source import Source
from tfaccel.errors import UserError
from tfaccel.fields import Flag
from tfaccel.lazy import tf
from tfaccel.log import logger

Placement = Literal["host", "device"]


def check(*, placement: Placement) -> None:
    """Refuses what `place` cannot do yet."""
    fields.check(Placement, placement, "data.placement")
    if placement == "device":
        raise UserError("received data.placement=device: not yet. Use host, the default.")


def place(*, placement: Placement = "host") -> Placement:
    """Returns where batches are augmented.

    Args:
        placement: "host", in tf.data beside the training step; "device" (inside
            the step) comes with a later release.

    Raises:
        UserError: If the placement is not built yet.
    """
    check(placement=placement)
    return placement


def choose_jit(busy: bool, *, jit: Flag = "auto") -> bool:
    """Returns whether to compile augmentation with XLA; "auto" is logged.

    Args:
        busy: Whether images are augmented or mixed at all.
        jit: "auto" compiles whenever there is something to gain: on CPUs the
            compiled function is several times faster than TensorFlow's operations one
            after the other, and the pixels are the same.
    """
    jit = fields.check(Flag, jit, "data.jit")
    if jit == "auto":
        jit = busy
        outcome = ("on", "") if busy else ("off", "not ")
        logger.info("data.jit: %s (auto: images are %saugmented or mixed)", *outcome)
    return jit


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The endless stream of training batches of a run.

    Args:
        source: Where images come from.
        seed: The run's seed.
        global_batch_size: Examples a step takes, over all replicas.
        augment: Function (images, keys) -> images, or None.
        normalize: Function images -> float32, or None.
        mixing: Mixes images and makes labels soft, or None.
        jit: Compile these three with XLA, which is several times faster than one
            operation after the other; all of ours can be.
    """

    source: Source
    seed: int
    global_batch_size: int
    augment: Callable | None = None
    normalize: Callable | None = None
    mixing: mixing_lib.Mixing | None = None
    jit: bool = False

    @property
    def steps_per_epoch(self) -> Fraction:
        """Examples divided by the batch size, exactly: epochs may end in mid-step."""
        return Fraction(len(self.source), self.global_batch_size)

    def dataset(
        self, first_step: int = 0, shard: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """Returns the batches from one step on, without end.

        Args:
            first_step: The step to start at.
            shard: The input pipeline among those of a strategy; each element is
                then one replica's part of the batch, replica after replica.

        Returns:
            Dataset of (images float32 [b, height, width, channels], labels int32
            [b], or float32 [b, classes] with `mixing`); b is the batch of one
            replica.
        """
        finish = tf.function(self._finish, autograph=False, jit_compile=self.jit or None)

        def load(places):
            batch = self._fetch(places)
            if self.mixing is None or not self.mixing.needs_partners:
                return finish(batch)
            partners = mixing_lib.partner_places(places, self.global_batch_size, self.seed)
            if places.shape[0] == self.global_batch_size:
                return finish(batch, within=partners - places[0])
            return finish(batch, self._fetch(partners))

        return _batches(load, self.global_batch_size, first_step, shard)

    def _fetch(self, places):
        """Returns (images, labels, epochs, examples) as the source has them."""
        epochs, examples = order.examples_at(places, len(self.source), self.seed)
        return *self.source.fetch(examples), epochs, examples

    def _finish(self, batch, partners=None, within=None):
        """Augments, mixes and normalises a batch.

        Partners for mixing are examples that were fetched for it, or places `within`
        the batch.
        """
        images, labels, keys = self._augmented(*batch)
        if self.mixing is not None:
            if within is not None:
                partners = tf.gather(images, within), tf.gather(labels, within)
            elif partners is not None:
                partners = self._augmented(*partners)[:2]
            classes = self.source.num_classes
            images, labels = self.mixing(images, labels, keys, classes, partners)
        return _normalized(images, self.normalize), labels

    def _augmented(self, images, labels, epochs, examples):
        keys = randomness.example_keys(self.seed, epochs, examples)
        return images if self.augment is None else self.augment(images, keys), labels, keys


@dataclasses.dataclass(frozen=True)
class EvaluationData:
    """Every example of a source once, in full batches of one static shape.

    The last batch is padded; padding has sample weight 0, so that weighted
    metrics are exact.

    Args:
        source: Where images come from.
        global_batch_size: Examples a step takes, over all replicas.
        normalize: Function images -> float32, or None.
        one_hot: Give labels as float32 [b, classes], for a model that trains on soft
            ones.
    """

    source: Source
    global_batch_size: int
    normalize: Callable | None = None
    one_hot: bool = False

    @property
    def steps(self) -> int:
        """How many batches cover the source once."""
        return math.ceil(len(self.source) / self.global_batch_size)

    def dataset(self, shard: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        """Returns the batches in the source's own order.

        Args:
            shard: As for `TrainingData.dataset`.

        Returns:
            Endless dataset of (images, labels, sample_weight float32 [b]); after
            `steps` batches all weights are 0.
        """
        return _batches(self._load, self.global_batch_size, 0, shard)

    def _load(self, places):
        real = places < len(self.source)
        images, labels = self.source.fetch(tf.where(real, places, 0))
        if self.one_hot:
            labels = tf.one_hot(labels, self.source.num_classes)
        return _normalized(images, self.normalize), labels, tf.cast(real, tf.float32)


def _batches(load_places, global_batch_size: int, first_step: int, shard):
    """Returns the endless dataset of `load_places` of one input pipeline's places."""
    replicas = 1 if shard is None else shard.num_replicas_in_sync
    if global_batch_size % replicas:
        raise UserError(
            f"received global_batch_size={global_batch_size} for {replicas} replicas, "
            "expected a multiple of them."
        )
    local = replicas if shard is None else replicas // shard.num_input_pipelines
    first_replica = 0 if shard is None else shard.input_pipeline_id * local
    size = global_batch_size // replicas

    def load(position):
        step, replica = position // local, first_replica + position % local
        start = step * global_batch_size + replica * size
        return load_places(start + tf.range(size, dtype=tf.int64))

    # A finite dataset, however long, costs a collective a step on workers.
    positions = tf.data.Dataset.counter(first_step * local)
    return positions.map(load, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _normalized(images, normalize):
    return images if normalize is None else normalize(images)
