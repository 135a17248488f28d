"""The page in a headless Chromium: it draws, fits and stays silent."""

import browser
import pytest
import run_folders

from tfaccel import report

NEEDS_TENSORFLOW = False

# What is seen of each chart: its size, and how many pixels of its canvas are painted.
DRAWN = """
return {
  charts: [...document.querySelectorAll(".chart")].map((chart) => {
    const canvas = chart.querySelector("canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return {
      title: chart.querySelector("figcaption").firstChild.textContent.trim(),
      width: canvas.getBoundingClientRect().width,
      painted: pixels.data.filter((value, index) => index % 4 === 3 && value > 0).length,
    };
  }),
  sizes: [...document.querySelectorAll("h1, .fact, .bar span, .command, img, .confusion td")]
    .map((element) => element.getBoundingClientRect())
    .map(({ width, height }) => Math.min(width, height)),
  overflow: document.documentElement.scrollWidth - innerWidth,
  summary: document.getElementById("repeat").getBoundingClientRect().bottom,
  background: getComputedStyle(document.body).backgroundColor,
};
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return report.build([run_folders.write(tmp_path_factory.mktemp("runs") / "run")])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_page_draws_and_fits(page, width, scheme):
    seen = browser.look(page, DRAWN, width=width, scheme=scheme)
    assert seen.console == []
    assert seen.requests == [page.as_uri()]
    assert len(seen.value["charts"]) == 6
    for chart in seen.value["charts"]:
        assert chart["width"] > 250, chart
        assert chart["painted"] > 500, chart
    assert min(seen.value["sizes"]) > 0
    assert seen.value["overflow"] <= 0
    # What ran, where, how long, how good, what was slow and the command: no scrolling.
    assert seen.value["summary"] < 844
    dark = seen.value["background"] != "rgb(251, 251, 249)"
    assert dark is (scheme == "dark")


HOVER = """
const over = document.querySelector(".chart .u-over");
const box = over.getBoundingClientRect();
const text = () => [...document.querySelectorAll(".chart .u-legend")].map((e) => e.innerText);
const before = text();
const place = { clientX: box.right - 1, clientY: box.top + 20, bubbles: true };
over.dispatchEvent(new MouseEvent("mouseenter", place));
over.dispatchEvent(new MouseEvent("mousemove", place));
return [before, text()];
"""


def test_hovering_shows_the_values_of_all_charts_there(page):
    before, after = browser.look(page, HOVER).value
    assert all("at the end" in text for text in before)
    assert all("step 160" in text for text in after)
    assert "validation" in after[0]


SWITCH = """
const press = (text) =>
  [...document.querySelectorAll("button")].find((b) => b.textContent === text).click();
const pressed = () =>
  [...document.querySelectorAll("#axis [aria-pressed=true]")].map((b) => b.textContent);
const seen = [pressed()];
for (const name of ["Epochs", "Minutes", "log", "Steps", "Copy"]) {
  press(name);
  seen.push(pressed());
}
return [seen, document.querySelectorAll(".plot canvas").length];
"""


def test_the_axis_can_be_switched(page):
    seen = browser.look(page, SWITCH)
    assert seen.console == []
    names = ["Steps", "Epochs", "Minutes", "Minutes", "Steps", "Steps"]
    assert seen.value == [[[name] for name in names], 6]


@pytest.mark.parametrize("width", [1440, 390])
def test_runs_are_drawn_side_by_side(tmp_path, width):
    folders = [
        run_folders.write(tmp_path / name, seed=seed, config={"seed": seed})
        for seed, name in enumerate(("first", "second"))
    ]
    compared = report.build(folders, tmp_path / "comparison.html")
    script = DRAWN.replace('getElementById("repeat")', 'getElementById("runs")').replace(
        "sizes:", 'names: document.querySelector(".u-legend").innerText, sizes:'
    )
    seen = browser.look(compared, script, width=width)
    assert seen.console == []
    assert [chart["title"] for chart in seen.value["charts"]][:2] == [
        "Loss, training",
        "Loss, validation",
    ]
    assert all(chart["painted"] > 500 for chart in seen.value["charts"])
    assert "first" in seen.value["names"]
    assert "second" in seen.value["names"]
    assert seen.value["overflow"] <= 0


EDGES = {
    "killed": {"finished": False},
    "never evaluated": {"finished": False, "evaluated": False},
    "one class": {"classes": 1},
    "a thousand classes": {"classes": 1000, "images": 3000},
    "one row": {"epochs": 1, "steps_per_epoch": 1},
}


@pytest.mark.parametrize("edge", EDGES)
def test_unusual_runs_draw_without_an_error(tmp_path, edge):
    page = report.build([run_folders.write(tmp_path / "run", **EDGES[edge])])
    seen = browser.look(page, DRAWN, width=390)
    assert seen.console == []
    assert all(chart["painted"] > 100 for chart in seen.value["charts"])
    assert seen.value["overflow"] <= 0


def test_a_run_without_a_row_draws_no_chart_and_no_error(tmp_path):
    run_folders.write_json(tmp_path / "config.json", {"model.name": "resnet9"})
    seen = browser.look(report.build([tmp_path]), "return document.body.innerText")
    assert seen.console == []
    assert "so there are no curves" in seen.value


def test_names_from_outside_stay_text(tmp_path):
    """No class name, folder or value of a config runs as a script or makes an element."""
    nasty = "<img src=x onerror=console.log('broken')>"
    folders = [
        run_folders.write(
            tmp_path / f"{nasty}{seed}",
            seed=seed,
            classes=3,
            config={"data.name": nasty * seed},
        )
        for seed in (1, 2)
    ]
    for name, runs in (("one", folders[:1]), ("both", folders)):
        page = report.build(runs, tmp_path / f"{name}.html")
        script = "return [document.querySelectorAll('img[src=x]').length, document.title]"
        seen = browser.look(page, script)
        assert seen.console == []
        assert seen.requests == [page.as_uri()]
        assert seen.value == [0, f"{nasty}1" if name == "one" else "2 runs"]
