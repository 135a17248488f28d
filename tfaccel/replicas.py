"""The replicas that train a model together: one device, several, or several workers.

Step and loop speak to this one interface, so that they need not know whether a
`tf.distribute` strategy or Horovod joins the replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tfaccel import distribution, graph, horovod, host
from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf


class Replicas:
    """The replicas of a `tf.distribute` strategy.

    Args:
        strategy: Any synchronous strategy; the default one is a single replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync
        self.worker, self.workers = distribution.worker(strategy)
        self._options = distribution.communication_options(strategy)
        self._agreement = graph.own(self._smallest)

    @property
    def chief(self) -> bool:
        """Whether this process is the one that writes."""
        return self.worker == 0

    @property
    def loss_share(self) -> float:
        """What Keras's losses must still be divided by to sum to a global mean."""
        return self.count / self.strategy.num_replicas_in_sync

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the scope in which variables are made."""
        return self.strategy.scope()

    def run(self, function: Callable, *arguments) -> Any:
        """Runs a function on each replica of this process."""
        return self.strategy.run(function, args=arguments)

    def run_graph(self, function: Callable) -> None:
        """Runs a function on each replica, once, in a graph that is let go afterwards.

        TensorFlow keeps each `tf.function` given to `strategy.run`, and thereby the
        model that it uses, for as long as the strategy.
        """
        with self.scope():
            graph.own(lambda: self.run(function))()

    def index(self) -> tf.Tensor:
        """Returns, on a replica, its number among all of them, from 0."""
        return tf.convert_to_tensor(
            tf.distribute.get_replica_context().replica_id_in_sync_group
        )

    def sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns, on a replica, the sums over all replicas; one collective."""
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors, self._options)

    def gather(self, values) -> tf.Tensor:
        """Returns, outside replicas, their tensors one after the other, on each worker."""
        if self.count == 1:
            return values
        return self.strategy.gather(values, axis=0)

    def dataset(self, dataset_of_shard: Callable) -> Any:
        """Returns the dataset of what each replica gets.

        Args:
            dataset_of_shard: Function of a `tf.distribute.InputContext`, or None
                for a single device, that returns an endless dataset.
        """
        if not _mirrors(self.strategy):
            return dataset_of_shard(None)
        return self.strategy.distribute_datasets_from_function(dataset_of_shard)

    def iterator(self, dataset: Any) -> Any:
        """Returns an iterator of what `dataset` has returned."""
        iterator = iter(dataset)
        # Making that of several replicas sets glibc's thresholds low (TensorFlow 2.21):
        # each larger block is then mapped anew, and page faults took a third of a step.
        host.keep_freed_memory()
        return iterator

    def metrics(self, model: keras.Model) -> dict[str, tf.Tensor]:
        """Returns a model's metrics over all replicas, as tensors; also in a graph."""
        # A metric may give its variable itself, which is read over all replicas.
        found = model.get_metrics_result()
        return {name: keras.ops.convert_to_tensor(value) for name, value in found.items()}

    def agree(self, *numbers: float) -> list[float]:
        """Returns the smallest of each number over all workers."""
        if self.workers == 1:
            return list(numbers)
        return self._agreement(tf.constant([numbers], tf.float64)).numpy().tolist()

    def check_alike(self, number: float, what: str) -> None:
        """Refuses to go on if a number differs between workers.

        Raises:
            UserError: On every worker, if `number` is not the same on all.
        """
        low, negative_high = self.agree(number, -number)
        if low != -negative_high:
            raise UserError(
                f"{what} differs between the workers, expected the same on all "
                f"{self.workers}: each keeps its share of one common global batch. Seed "
                "every shuffle, and let all workers read the same files in the same order."
            )

    def start_alike(self, variables: list) -> None:
        """Gives Keras variables the chief's values; a strategy has done so itself."""

    def _smallest(self, numbers):
        def gathered():
            own = tf.identity(numbers)  # Made here, so that it has this replica's device.
            return tf.distribute.get_replica_context().all_gather(own, axis=0)

        everybody = self.strategy.experimental_local_results(self.run(gathered))[0]
        return tf.reduce_min(everybody, axis=0)


class HorovodReplicas(Replicas):
    """The workers of Horovod, with one device each."""

    def __init__(self, strategy: tf.distribute.Strategy):
        super().__init__(strategy)
        self.count = self.workers
        # Not a constant: where all that is summed is known beforehand, TensorFlow would
        # run the sum while it optimises the graph, on one worker perhaps, and wait.
        self._index = tf.Variable(self.worker, trainable=False)

    def index(self) -> tf.Tensor:
        """Returns this worker's number."""
        return self._index.read_value()

    def sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; one exchange."""
        return horovod.all_reduce_sum(tensors)

    def gather(self, values) -> tf.Tensor:
        """Returns the workers' tensors one after the other, on each worker."""
        mine = tf.one_hot(self.index(), self.count)
        mine = tf.reshape(tf.cast(mine, values.dtype), [-1] + [1] * values.shape.rank)
        (everybody,) = self.sum([mine * values[None]])
        return tf.reshape(everybody, tf.concat([[-1], tf.shape(values)[1:]], axis=0))

    def dataset(self, dataset_of_shard: Callable) -> Any:
        """Returns the dataset of what this worker gets."""
        shard = tf.distribute.InputContext(self.count, self.worker, self.count)
        return dataset_of_shard(shard)

    def metrics(self, model: keras.Model) -> dict[str, tf.Tensor]:
        """Returns a model's metrics over all workers: of the sums of their states."""
        variables = list({id(v): v for v in model.metrics_variables}.values())
        own = [tf.identity(v.value) for v in variables]
        for variable, total in zip(variables, self.sum(own), strict=True):
            variable.assign(total)
        found = super().metrics(model)
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)
        return found

    def start_alike(self, variables: list) -> None:
        """Gives Keras variables the chief's values."""
        horovod.broadcast(variables)

    def _smallest(self, numbers):
        return tf.reduce_min(self.gather(numbers), axis=0)


def of(strategy: tf.distribute.Strategy | Replicas | None) -> Replicas:
    """Returns the replicas of a strategy, of the current one if None."""
    if isinstance(strategy, Replicas):
        return strategy
    strategy = strategy or tf.distribute.get_strategy()
    return HorovodReplicas(strategy) if horovod.active() else Replicas(strategy)


def _mirrors(strategy) -> bool:
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return isinstance(strategy, mirrored)
