"""How long the rest of a run will take."""

import time


class Pace:
    """The time left, by the mean pace since the first call, which compiles.

    Args:
        step: Steps done before.
    """

    def __init__(self, step: int):
        self.step = step
        self._start_step, self._start = step, None

    def advance(self, steps: int) -> None:
        """Notes that a call of some steps has ended."""
        self.step += steps
        if self._start is None:
            self._start_step, self._start = self.step, time.perf_counter()

    def seconds_left(self, total_steps: int) -> float | None:
        """Returns the seconds to the last step; None until the second call has ended."""
        done = self.step - self._start_step
        if not done:
            return None
        return (time.perf_counter() - self._start) / done * (total_steps - self.step)
