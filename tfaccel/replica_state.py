"""What replicas keep apart while training, and how it becomes one state again."""

from __future__ import annotations

import numpy as np

from tfaccel import graph
from tfaccel.lazy import keras, tf


class MovingStatistics:
    """BatchNorm's moving statistics, of which each replica keeps its own.

    Args:
        model: A built model.
        replicas: Where it lives; see `tfaccel.replicas`.
    """

    def __init__(self, model: keras.Model, replicas):
        self.replicas = replicas
        own = [v for v in model.non_trainable_variables if v.dtype.startswith("float")]
        self._variables = [v.value for v in own]
        self._run = graph.own(lambda: replicas.run(self._average))

    def average(self) -> None:
        """Makes them the average over all replicas: only the first would be saved.

        Variables that agree already keep their exact value.
        """
        if self.replicas.count > 1 and self._variables:
            with self.replicas.scope():
                self._run()

    def _average(self):
        replicas, variables = self.replicas, self._variables
        first = replicas.index() == 0
        leading = replicas.sum([tf.where(first, v, tf.zeros_like(v)) for v in variables])
        changes = replicas.sum([v - lead for v, lead in zip(variables, leading, strict=True)])
        for v, lead, change in zip(variables, leading, changes, strict=True):
            v.assign(lead + change / replicas.count)


def separate_dropout(model: keras.Model, replicas) -> None:
    """Gives each replica its own Dropout masks; the first keeps the saved ones.

    Keras's seed generators start alike on every replica, which would draw the
    same mask for every part of the batch.
    """
    states = seed_states(model)
    if replicas.count == 1 or not states:
        return
    saved = np.stack([state.numpy() for state in states])
    table = np.stack([saved] * replicas.count)
    for replica in range(1, len(table)):
        for state in table[replica]:
            state[0] = np.random.SeedSequence([state[0], replica]).generate_state(1)[0]

    def assign():
        own = tf.gather(tf.constant(table), replicas.index())
        for index, state in enumerate(states):
            state.value.assign(own[index])

    replicas.run_graph(assign)


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of the model's random generators, such as Dropout's."""
    return [v for v in model.variables if v.name == "seed_generator_state"]
