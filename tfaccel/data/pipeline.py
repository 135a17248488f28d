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
from tfaccel.data.per_image import PerImageSource
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

        def complete(images, labels, places):
            # XLA has no kernel for the order of examples.
            keys = self._wanted(places)[1]
            return finish(images, labels, keys, self._partners_within(places))

        return _batches(self, complete, first_step, shard)

    def _wanted(self, places):
        """Returns the (examples, keys) of a batch, and after them those of its partners.

        Partners for mixing that lie in the batch itself are not fetched twice.
        """
        if self._mixes and places.shape[0] < self.global_batch_size:
            places = tf.concat([places, self._partners(places)], axis=0)
        epochs, examples = order.examples_at(places, len(self.source), self.seed)
        return examples, randomness.example_keys(self.seed, epochs, examples)

    def _finish(self, images, labels, keys, partners):
        """Augments, mixes and normalises a batch.

        Args:
            images: uint8 [n, ...]; where partners are fetched for it, [2 n, ...].
            labels: int32, likewise.
            keys: uint32, likewise.
            partners: Where in the batch each example's partner is, int64 [n], or None.
        """
        if self.augment is not None:
            images = self.augment(images, keys)
        if self.mixing is not None:
            images, labels = self._mixed(images, labels, keys, partners)
        return _normalized(images, self.normalize), labels

    def _mixed(self, images, labels, keys, partners):
        others = None
        if partners is not None:
            others = tf.gather(images, partners), tf.gather(labels, partners)
        elif self._mixes:
            (images, other_images), (labels, other_labels), (keys, _) = (
                tf.split(tensor, 2) for tensor in (images, labels, keys)
            )
            others = other_images, other_labels
        return self.mixing(images, labels, keys, self.source.num_classes, others)

    @property
    def _mixes(self) -> bool:
        return self.mixing is not None and self.mixing.needs_partners

    def _partners(self, places):
        return mixing_lib.partner_places(places, self.global_batch_size, self.seed)

    def _partners_within(self, places):
        if self._mixes and places.shape[0] == self.global_batch_size:
            return self._partners(places) - places[0]
        return None


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
        return _batches(self, self._finish, 0, shard)

    def _wanted(self, places):
        """Returns the examples of a batch, padded; no keys, as nothing is random."""
        return tf.where(places < len(self.source), places, 0), None

    def _finish(self, images, labels, places):
        if self.one_hot:
            labels = tf.one_hot(labels, self.source.num_classes)
        real = tf.cast(places < len(self.source), tf.float32)
        return _normalized(images, self.normalize), labels, real


def _batches(data: TrainingData | EvaluationData, finish, first_step: int, shard):
    """Returns the endless dataset of one input pipeline's part of the batches.

    Args:
        data: Says which examples stand at some places of the stream.
        finish: Function (images, labels, places) -> a batch.
        first_step: The step to start at.
        shard: The input pipeline, or None.
    """
    source, global_batch_size = data.source, data.global_batch_size
    replicas = 1 if shard is None else shard.num_replicas_in_sync
    if global_batch_size % replicas:
        raise UserError(
            f"received global_batch_size={global_batch_size} for {replicas} replicas, "
            "expected a multiple of them."
        )
    local = replicas if shard is None else replicas // shard.num_input_pipelines
    first_replica = 0 if shard is None else shard.input_pipeline_id * local
    size = global_batch_size // replicas

    def places_of(position):
        step, replica = position // local, first_replica + position % local
        start = step * global_batch_size + replica * size
        return start + tf.range(size, dtype=tf.int64)

    def wanted(position):
        return data._wanted(places_of(position))

    def load(position):
        places = places_of(position)
        return finish(*source.fetch(*data._wanted(places)), places)

    def complete(fetched, places):
        return finish(*fetched, places)

    # A finite dataset, however long, costs a collective a step on workers.
    positions = tf.data.Dataset.counter(first_step * local)
    if isinstance(source, PerImageSource):
        images = _one_by_one(source, positions, wanted)
        batches = _parallel(tf.data.Dataset.zip(images, positions.map(places_of)), complete)
    else:
        batches = _parallel(positions, load)
    return batches.prefetch(tf.data.AUTOTUNE)


def _one_by_one(source: PerImageSource, positions, wanted):
    """Returns batches of (images, labels) whose examples are read in parallel."""
    size = wanted(tf.constant(0, tf.int64))[0].shape[0]

    def request(position):
        return source.requests(*wanted(position))

    images = _parallel(_parallel(positions, request).unbatch(), source.load)
    return images.batch(size, drop_remainder=True)


def _parallel(dataset, function):
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


def _normalized(images, normalize):
    return images if normalize is None else normalize(images)
