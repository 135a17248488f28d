"""The same short training in our loop and in Keras's own fit, for tests of callbacks."""

import pytest
import tiny

from tfaccel import loop, plan

# 32 examples in batches of 8: four steps an epoch; 16 to validate on: two.
LENGTH = plan.build(32, duration="2ep", global_batch_size=8)


def ours(model, added, validation=True, **kwargs):
    evaluation = tiny.evaluation(count=16, seed=1) if validation else None
    training = tiny.training(count=32)
    return loop.fit(model, training, LENGTH, validation=evaluation, callbacks=added, **kwargs)


def stock(model, added, validation=True):
    training, evaluation = tiny.training(count=32), tiny.evaluation(count=16, seed=1)
    x, y, _ = next(iter(evaluation.dataset().unbatch().batch(16)))
    return model.fit(
        training.dataset(),
        epochs=2,
        steps_per_epoch=4,
        validation_data=(x, y) if validation else None,
        callbacks=added,
        verbose=0,
    )


both = pytest.mark.parametrize("fit", [ours, stock])
