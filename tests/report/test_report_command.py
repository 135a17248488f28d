"""python -m tfaccel.report, as it is typed."""

import pytest
import run_folders

from tfaccel import cli
from tfaccel.report import __main__ as command

NEEDS_TENSORFLOW = False


def run(*argv):
    return cli.main(command.run, ["report", *map(str, argv)])


def test_it_prints_where_the_page_is(tmp_path, capsys):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    assert run(folder) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 2, 1)])
def test_out_may_stand_anywhere(tmp_path, order):
    folders = [run_folders.write(tmp_path / name, epochs=1) for name in "ab"]
    arguments = [*folders, f"--out={tmp_path / 'page.html'}"]
    assert run(*(arguments[index] for index in order)) == 0
    assert "2 runs" in (tmp_path / "page.html").read_text()


def test_a_comparison_is_written_here(tmp_path, monkeypatch):
    for name in "ab":
        run_folders.write(tmp_path / "runs" / name, epochs=1)
    monkeypatch.chdir(tmp_path)
    assert run("runs/a", "runs/b") == 0
    assert (tmp_path / "comparison.html").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "received no run, expected one folder or several"),
        (["absent"], "received the run absent, which does not exist, expected a run's folder."),
        (["empty"], "received the run empty, which holds neither config.json nor metrics.csv"),
        (["run", "--out="], "received --out=, expected a file"),
        (["run", "--out=empty"], "received --out=empty, which is a folder, expected a file."),
        (["run", "--ot=x"], "received the unknown flag --ot. Known: --out."),
    ],
)
def test_refused_in_one_line(tmp_path, monkeypatch, capsys, argv, message):
    run_folders.write(tmp_path / "run", epochs=1)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")
    assert sorted(tmp_path.rglob("*")) == before


def test_it_never_imports_tensorflow(fresh_python, tmp_path):
    folders = [run_folders.write(tmp_path / name, epochs=1) for name in "ab"]
    code = (
        "import sys; from tfaccel import cli; from tfaccel.report import __main__ as report;"
        "print(cli.main(report.run, ['report', *sys.argv[1:]]), *sys.modules, sep='\\n')"
    )
    done = fresh_python("-c", code, *folders, "--out=page.html", cwd=tmp_path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:2] == ["page.html", "0"]
    assert {"tensorflow", "keras"}.isdisjoint(lines)
