"""notebooks/quickstart.ipynb, run as a person would: top to bottom, and once more."""

import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

import tfaccel

NEEDS_TENSORFLOW = False

ROOT = Path(__file__).parents[1]
# Not only that nothing fails: absl's flags must not have seen the kernel's own arguments.
AFTERWARDS = "import sys\nfrom absl import flags\nprint(flags.FLAGS.is_parsed(), sys.argv[1:])"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each cell put out, in two rounds in one kernel."""
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    once = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [
        *once,
        *(cell.copy() for cell in once),
        nbformat.v4.new_code_cell(AFTERWARDS),
    ]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell{number}"
    environment = {**os.environ, "TFACCEL_RUNLOCAL": "1"}
    environment["PYTHONPATH"] = str(Path(tfaccel.__file__).parents[1])
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}},
    )
    client.execute(env=environment)
    return once, [cell.outputs for cell in notebook.cells]


def text_of(outputs):
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in outputs
    )


def test_every_cell_runs_and_runs_again(outputs):
    once, found = outputs
    assert len(found) == 2 * len(once) + 1
    assert not [o for cell in found for o in cell if o.output_type == "error"]


def test_it_trains_evaluates_and_shows_the_report(outputs):
    once, found = outputs
    everything = "\n".join(text_of(cell) for cell in found[: len(once)])
    assert re.search(r"'accuracy': 0\.\d+", everything)
    pages = [
        o["data"]["text/html"]
        for cell in found
        for o in cell
        if "text/html" in o.get("data", {})
    ]
    pages = [page for page in pages if "<iframe" in page]
    assert len(pages) == 2  # one a round
    assert all("Test accuracy" in page for page in pages)


def test_pictures_are_shown(outputs):
    _, found = outputs
    assert any("image/png" in o.get("data", {}) for cell in found for o in cell)


def test_the_kernels_arguments_never_reach_absl(outputs):
    _, found = outputs
    parsed, arguments = text_of(found[-1]).split(maxsplit=1)
    assert parsed == "False"
    assert "-f" in arguments  # there were some that absl does not know


def test_it_is_committed_without_outputs():
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}


def test_it_is_the_run_of_the_quickstart():
    """The fields that it sets are those of configs/quickstart.py, with the same values."""
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    (cell,) = [c.source for c in notebook.cells if "config.default()" in c.source]
    config = (ROOT / "configs" / "quickstart.py").read_text()

    def assigned(text):
        return re.findall(r"^ *(config\.[\w.]+ = .*)$", text, re.M)

    assert assigned(cell) == assigned(config)
