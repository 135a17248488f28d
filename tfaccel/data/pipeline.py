"""From a source to batches: a pure function of the seed and the step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from tfaccel import fields, randomness
from tfaccel.data import order
from tfaccel.data.per_image import PerImageSource
from tfaccel.data.source import Source
from tfaccel.errors import UserError
from tfaccel.lazy import tf

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


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The endless stream of training batches of a run.

    Args:
        source: Where images come from.
        seed: The run's seed.
        global_batch_size: Examples a step takes, over all replicas.
        augment: Function (images, keys) -> images, or None.
        normalize: Function images -> float32, or None.
    """

    source: Source
    seed: int
    global_batch_size: int
    augment: Callable | None = None
    normalize: Callable | None = None

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
            [b]); b is the batch of one replica.
        """
        return _batches(self, first_step, shard)

    def _examples(self, places):
        """Which examples stand at some places, with their keys; the keys go on."""
        epochs, examples = order.examples_at(places, len(self.source), self.seed)
        keys = randomness.mix(self.seed, epochs, examples)
        return examples, keys, keys

    def _finish(self, images, labels, keys):
        if self.augment is not None:
            images = self.augment(images, keys)
        return _normalized(images, self.normalize), labels


@dataclasses.dataclass(frozen=True)
class EvaluationData:
    """Every example of a source once, in full batches of one static shape.

    The last batch is padded; padding has sample weight 0, so that weighted
    metrics are exact.

    Args:
        source: Where images come from.
        global_batch_size: Examples a step takes, over all replicas.
        normalize: Function images -> float32, or None.
    """

    source: Source
    global_batch_size: int
    normalize: Callable | None = None

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
        return _batches(self, 0, shard)

    def _examples(self, places):
        """Which examples stand at some places, without keys; their weights go on."""
        real = places < len(self.source)
        return tf.where(real, places, 0), None, tf.cast(real, tf.float32)

    def _finish(self, images, labels, weights):
        return _normalized(images, self.normalize), labels, weights


def _batches(data: TrainingData | EvaluationData, first_step: int, shard):
    """Returns the endless dataset of one input pipeline's part of the batches."""
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

    def examples_of(position):
        step, replica = position // local, first_replica + position % local
        start = step * global_batch_size + replica * size
        return data._examples(start + tf.range(size, dtype=tf.int64))

    def fetch(position):
        examples, keys, further = examples_of(position)
        return data._finish(*source.fetch(examples, keys), further)

    def request(position):
        examples, keys, further = examples_of(position)
        return source.requests(examples, keys), further

    def load(one, further):
        return *source.load(one), further

    # A finite dataset, however long, costs a collective a step on workers.
    batches = tf.data.Dataset.counter(first_step * local)
    if isinstance(source, PerImageSource):
        images = _parallel(_parallel(batches, request).unbatch(), load)
        batches = _parallel(images.batch(size, drop_remainder=True), data._finish)
    else:
        batches = _parallel(batches, fetch)
    return batches.prefetch(tf.data.AUTOTUNE)


def _parallel(dataset, function):
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


def _normalized(images, normalize):
    return images if normalize is None else normalize(images)
