import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tfaccel

NEEDS_TENSORFLOW = False

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_listed(setup_cfg):
    # Listed by hand, so that a new folder is easily forgotten in the wheel.
    folders = [path.parent for path in (ROOT / "tfaccel").rglob("__init__.py")]
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = setup_cfg["options"]["packages"].split()
    assert sorted(listed) == sorted({*packages, "tfaccel.configs"})


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in (ROOT / "tfaccel").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_configs_are_packaged_as_a_part_of_tfaccel(setup_cfg):
    assert setup_cfg["options"]["package_dir"].split("\n")[1:] == ["tfaccel.configs = configs"]
    assert (ROOT / "configs" / "__init__.py").exists()


def test_the_version_is_in_the_changelog():
    headings = [
        line.split()[1]
        for line in (ROOT / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    assert headings[0] == tfaccel.__version__


def test_the_wheel_has_one_version(setup_cfg):
    assert setup_cfg["metadata"]["version"] == "attr: tfaccel.__version__"


def test_markers_are_declared(setup_cfg):
    # --strict-markers makes a misspelt one an error, which would else run a slow test.
    assert "--strict-markers" in setup_cfg["tool:pytest"]["addopts"]


@pytest.mark.slow
def test_the_wheel_holds_code_and_configs(tmp_path):
    # A copy, because setuptools leaves build folders behind.
    checkout = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "build", "runs", "*.egg-info")
    shutil.copytree(ROOT, checkout, ignore=ignore)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command = [*pip, f"--wheel-dir={tmp_path}", str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"tfaccel-{tfaccel.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        quickstart = archive.read("tfaccel/configs/quickstart.py")
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "tfaccel").rglob("*.py")}
    configs = {f"tfaccel/configs/{path.name}" for path in CONFIGS}
    report = ROOT / "tfaccel" / "report"
    page = {*report.glob("static/*"), *report.glob("templates/*")}
    assert names == code | configs | {str(path.relative_to(ROOT)) for path in page}
    assert quickstart == (ROOT / "configs" / "quickstart.py").read_bytes()
