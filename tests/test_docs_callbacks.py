"""The program that docs/callbacks.md is."""

import re
from pathlib import Path

from tfaccel import callbacks

PAGE = (Path(__file__).parents[1] / "docs" / "callbacks.md").read_text()


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    names = {}
    exec(compile(program, "callbacks.md", "exec"), names)
    assert names["throughput"].images_per_second > 0
    assert set(names["norms"].latest()) == {"gradient_norm/conv", "gradient_norm/dense"}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"metrics.csv", "timing.csv", "events"}
    assert len((tmp_path / "timing.csv").read_text().splitlines()) == 1 + 4


def test_the_page_shows_every_callback():
    assert [name for name in callbacks.__all__ if f"callbacks.{name}(" not in PAGE] == []
