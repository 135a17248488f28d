"""A progress bar in a notebook."""

from __future__ import annotations

import html
import sys


def in_notebook() -> bool:
    """Returns whether this is a notebook's kernel; imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar:
    """A bar with a line of text, drawn anew in its place.

    It needs no widgets, so it also shows where a notebook is viewed or exported.

    Args:
        total: Steps of the whole run.
        initial: Steps done before.
    """

    def __init__(self, total: int, initial: int = 0):
        from IPython import display

        self._html = display.HTML
        self.total, self.done, self.text = total, initial, ""
        self._handle = display.display(self._drawn(), display_id=True)

    def set_description_str(self, text: str, refresh: bool = True) -> None:
        """Sets the text beside the bar."""
        self.text = text
        if refresh:
            self._draw()

    def update(self, steps: int) -> None:
        """Moves the bar."""
        self.done += steps
        self._draw()

    def close(self) -> None:
        """Leaves the bar as it is."""

    def _draw(self):
        self._handle.update(self._drawn())

    def _drawn(self):
        return self._html(
            f'<progress value="{self.done}" max="{self.total}"></progress> '
            f"{self.done}/{self.total} {html.escape(self.text)}"
        )
