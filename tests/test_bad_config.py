"""What a user gets wrong is answered at once: one line, status 2, nothing left behind.

All cases run in one process without TensorFlow, each in a fork and an empty folder.
"""

import dataclasses
import inspect
import json
from pathlib import Path

import pytest

NEEDS_TENSORFLOW = False


@dataclasses.dataclass
class Case:
    """A command line, and parts of the line that answers it."""

    argv: list[str]
    parts: list[str]
    files: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    """What came of a case."""

    status: int | str
    stdout: str
    stderr: str
    left_behind: list[str]


def flags(argv, *parts):
    return Case(argv.split(), list(parts))


def setting(field, received, *parts):
    """A case of one field set on the command line."""
    return Case([f"--config.{field}={received}"], [f"received {field}=", received, *parts])


def file(text, *parts, argv="--config=bad.py"):
    """A case of a config file bad.py."""
    return Case([argv], list(parts), {"bad.py": text})


def body(line, part, *parts, **options):
    """A case of a config file whose line 5, in get_config, is this one."""
    text = (
        "from tfaccel import config as config_lib\n"
        "\n"
        "def get_config(arg=None):\n"
        "    config = config_lib.default()\n"
        f"    {line}\n"
        "    return config\n"
    )
    return file(text, f"bad.py, line 5: {part}", *parts, **options)


CONFIGS = (Path(__file__).parents[1] / "configs").glob("[!_]*.py")
PACKAGED = f"Known: {', '.join(sorted(path.stem for path in CONFIGS))}."
NO_FIELD = "which does not exist."
NO_CONFIG = (
    "get_config() returned no config: start from tfaccel.config.default() and return it."
)
DURATION = "expected a duration such as '3ep' (epochs) or '500st' (steps)"
WHOLE = "expected a whole number at least"
ABOVE_0 = "expected a number above 0."
AUTO_OR_BOOL = "expected one of auto or true or false."

CASES = {
    # The config file is not there.
    "no such config": flags(
        "--config=quickstrat",
        "received --config=quickstrat, but there is no such file. Did you mean quickstart?",
        PACKAGED,
    ),
    "no such path": flags(
        "--config=configs/quickstrat.py",
        "received --config=configs/quickstrat.py, but there is no such file.",
        "Did you mean quickstart?",
    ),
    "no such config, with an argument": flags(
        "--config=quickstrat:runlocal",
        "received --config=quickstrat:runlocal, but there is no such file.",
        "Did you mean quickstart?",
    ),
    "no such config, after a space": flags(
        "--config quickstrat", "received --config=quickstrat, but there is no such file."
    ),
    "the last --config wins": flags(
        "--config=quickstart --config=quickstrat",
        "received --config=quickstrat, but there is no such file.",
    ),
    "a folder": flags(
        "--config=.", "received --config=., which is a folder, expected a file.", PACKAGED
    ),
    "an empty --config=": flags("--config=", "received no value for --config", PACKAGED),
    "a bare --config": flags("--config", "received no value for --config", PACKAGED),
    # The config file raises: its name and line are told, as with a traceback.
    "ValueError": body('raise ValueError("two\\nlines")', "ValueError: two lines"),
    "TypeError": body("len(3)", "TypeError: object of type 'int' has no len()"),
    "NameError": body("nmae", "NameError: name 'nmae' is not defined"),
    "KeyError": body('{}["missing"]', "KeyError: 'missing'"),
    "FileNotFoundError": body(
        'open("absent.txt")',
        "FileNotFoundError: [Errno 2] No such file or directory: 'absent.txt'",
    ),
    "PermissionError": body('raise PermissionError("no entry")', "PermissionError: no entry"),
    "ImportError": body(
        "import absent_module", "ModuleNotFoundError: No module named 'absent_module'"
    ),
    "AttributeError about get_config": body(
        'raise AttributeError("no get_config")', "AttributeError: no get_config"
    ),
    "raises, named with ./": body("1 / 0", "ZeroDivisionError", argv="--config=./bad.py"),
    "raises, named with ..": body("1 / 0", "ZeroDivisionError", argv="--config=../cwd/bad.py"),
    "raises, with an argument": body("1 / 0", "ZeroDivisionError", argv="--config=bad.py:x"),
    "raises on import": file("x = 1 / 0\n", "bad.py, line 1: ZeroDivisionError"),
    "SyntaxError": file("import os\ndef get_config(:\n", "bad.py, line 2: invalid syntax"),
    # The config file returns no config.
    "no get_config": file(
        "x = 1\n",
        "bad.py has no get_config(): a config file defines get_config(arg=None) and returns "
        "a config.",
    ),
    "None": file("def get_config(arg=None):\n    pass\n", f"bad.py: {NO_CONFIG}"),
    "a number": file("def get_config(arg=None):\n    return 3\n", f"bad.py: {NO_CONFIG}"),
    "a dict": file("def get_config(arg=None):\n    return {'seed': 1}", f"bad.py: {NO_CONFIG}"),
    "all fields, but a dict": file(
        "from tfaccel import config\n"
        "def get_config(arg=None):\n"
        "    return config.default().to_dict()\n",
        f"bad.py: {NO_CONFIG}",
    ),
    "a config of one's own": file(
        "from ml_collections import config_dict\n"
        "def get_config(arg=None):\n"
        "    return config_dict.ConfigDict({'global_batch_size': 3})\n",
        "the config has no field seed: start from tfaccel.config.default()",
    ),
    "an argument, but get_config takes none": file(
        "def get_config():\n    pass\n",
        "bad.py", "get_config() takes 0 positional arguments but 1 was given",
        argv="--config=bad.py:runlocal",
    ),
    "no argument, but get_config needs one": file(
        "def get_config(size):\n    pass\n",
        "bad.py", "get_config() missing 1 required positional argument: 'size'",
    ),
    # Fields that do not exist.
    "a misspelt field in a file": body(
        "config.optimizer.learning_rat = 1", "", "learning_rat", "Did you mean",
        "optimizer.learning_rate",
    ),
    "a misspelt field beside one without default": body(
        'config.data.nmae = "digits"', "", "nmae", "Did you mean", "data.name"
    ),
    "a field at the wrong place in a file": body(
        "config.learning_rate = 1", "", "learning_rate",
        "Did you mean optimizer.learning_rate?",
    ),
    "a misspelt field": flags(
        "--config.optimizer.learning_rat=1",
        f"received the config field optimizer.learning_rat, {NO_FIELD} Did you mean "
        "optimizer.learning_rate",
        "--print_config lists all fields.",
    ),
    "a misspelt field, after a space": flags(
        "--config.optimizer.learning_rat 1",
        f"received the config field optimizer.learning_rat, {NO_FIELD}",
    ),
    "a misspelt section": flags(
        "--config.optimiser.name=sgd",
        f"received the config field optimiser.name, {NO_FIELD}",
        "optimizer.name",
    ),
    "a field at the wrong place": flags(
        "--config.learning_rate=1",
        f"received the config field learning_rate, {NO_FIELD} "
        "Did you mean optimizer.learning_rate?",
    ),
    "a field within a field": flags(
        "--config.seed.x=1", f"received the config field seed.x, {NO_FIELD}"
    ),
    "an index of a field": flags("--config.seed[0]=1", f"field seed[0], {NO_FIELD}"),
    "no field": flags("--config.=1", "--config.", "--print_config"),
    "a misspelt argument of the optimizer": flags(
        "--config=quickstart --config.optimizer.arguments.momentun=0.8",
        "received the config field optimizer.arguments.momentun",
        "momentum",
    ),
    "a misspelt argument, without --config": flags(
        "--config.optimizer.arguments.momentun=0.8",
        "received the config field optimizer.arguments.momentun",
        "momentum",
    ),
    "a misspelt argument of the model": flags(
        "--config=quickstart --config.model.arguments.widht=8",
        "received the config field model.arguments.widht",
        "width",
    ),
    # Values of the wrong type.
    "text for a whole number": setting("global_batch_size", "abc", f"{WHOLE} 1"),
    "a fraction for a whole number": setting("global_batch_size", "1.5", f"{WHOLE} 1"),
    "text for an optional whole number": setting("data.num_classes", "3.5", f"{WHOLE} 1 or"),
    "text for a number": setting("optimizer.learning_rate", "fast", ABOVE_0),
    "text for a bool": setting("data.augment.flip", "perhaps", "expected true or false"),
    "text for threads": setting(
        "devices.intra_op_threads", "many", "expected one of auto or a whole number at least 1"
    ),
    "a value for a section": setting("optimizer", "3"),
    "a value for a dictionary": setting("optimizer.arguments", "3", "expected a dictionary"),
    "text for an argument of the optimizer": setting("optimizer.arguments.momentum", "abc"),
    "a wrong type in a file": body(
        'config.global_batch_size = "abc"', "", "global_batch_size", "abc"
    ),
    # Values that cannot be.
    "a negative duration": setting("duration", "-3ep", DURATION),
    "an unknown unit": setting("duration", "3x", DURATION),
    "no unit": setting("duration", "3", DURATION, "Write duration=3ep or duration=3st."),
    "no duration": setting("duration", "", DURATION),
    "no time": setting("duration", "0ep", "expected more than 0."),
    "a share of the run's own length": setting("duration", "20%", DURATION),
    "no unit for a checkpoint": setting(
        "checkpoint.every", "5", "Write checkpoint.every=5ep or checkpoint.every=5st."
    ),
    "batch 0": setting("global_batch_size", "0", f"{WHOLE} 1."),
    "batch -1": setting("global_batch_size", "-1", f"{WHOLE} 1."),
    "accumulation 0": setting("accumulation", "0", f"{WHOLE} 1."),
    "seed -1": setting("seed", "-1", f"{WHOLE} 0."),
    "no checkpoint to keep": setting("checkpoint.keep", "0", f"{WHOLE} 1."),
    "a crop larger than the image": setting(
        "data.augment.crop_padding", "32", "for images of 32x32, expected less than 32: ",
        "Try 4.",
    ),
    "a crop larger than MNIST's": flags(
        "--config.data.name=mnist --config.data.augment.crop_padding=28",
        "received data.augment.crop_padding=28 for images of 28x28, expected less than 28",
    ),
    "a crop larger than the synthetic image": flags(
        "--config.data.name=synthetic --config.data.image_size=8 "
        "--config.data.augment.crop_padding=8",
        "received data.augment.crop_padding=8 for images of 8x8, expected less than 8",
    ),
    "a negative crop": setting("data.augment.crop_padding", "-1", f"{WHOLE} 0."),
    "two kinds of flip": flags(
        "--config.data.augment.flip --config.data.augment.alternating_flip",
        "flip=True and data.augment.alternating_flip=True, expected one of them.",
    ),
    "two policies": flags(
        "--config.data.augment.randaugment.number=2 "
        "--config.data.augment.trivialaugment.enabled",
        "randaugment.number=2 and data.augment.trivialaugment.enabled=True, expected one",
    ),
    "a negative number of operations": setting(
        "data.augment.randaugment.number", "-1", f"{WHOLE} 0."
    ),
    "a magnitude above 1": setting("data.augment.randaugment.magnitude", "9", "at most 1."),
    "a misspelt technique": flags(
        "--config.data.augment.randaugmnet.number=2",
        f"received the config field data.augment.randaugmnet.number, {NO_FIELD} Did you mean "
        "data.augment.randaugment.number",
    ),
    "areas in the wrong order": setting(
        "data.augment.erasing.smallest_area", "0.5", "largest_area=0.33, expected 0 < "
    ),
    "an unknown border": setting("data.augment.crop_border", "blck", "Did you mean black?"),
    "no part of the image": setting("data.augment.resized_crop.smallest_area", "0.0", "0.08"),
    "a negative mixup": setting("data.mixing.mixup", "-0.1", "at least 0"),
    "labels that say nothing": setting("data.mixing.label_smoothing", "1.0", "less than 1"),
    "unknown normalisation": setting("data.normalize", "units", "Did you mean unit?"),
    "no statistics": flags(
        "--config.data.normalize=given",
        "received data.mean='' and data.deviation='', expected one number for each channel",
    ),
    "statistics for nothing": flags("--config.data.mean=1,2,3", "they go with 'given'"),
    "a model without preprocessing": setting(
        "data.normalize", "model", "for the model resnet9", "data.normalize_model=VGG16"
    ),
    "learning rate 0": setting("optimizer.learning_rate", "0", ABOVE_0),
    "learning rate -1": setting("optimizer.learning_rate", "-1", ABOVE_0),
    "learning rate nan": setting("optimizer.learning_rate", "nan", ABOVE_0),
    "learning rate inf": setting("optimizer.learning_rate", "inf", ABOVE_0),
    "all for validation": setting(
        "data.validation_share", "1.0", "expected less than 1: nothing would be left to train"
    ),
    "more than all for validation": setting("data.validation_share", "1.5", "at most 1."),
    "unknown dataset": setting("data.name", "cifar11", "nor a TFDS dataset", "cifar10"),
    "unknown strategy": setting(
        "distribution.strategy", "mirored", "expected one of", "Did you mean mirrored?"
    ),
    "unknown precision": setting(
        "precision", "bf16",
        "expected one of auto, float32, mixed_bfloat16, mixed_float16.",
    ),
    "unknown schedule": setting(
        "schedule.name", "cosin", "expected one of constant, cosine", "Did you mean cosine?"
    ),
    "neither auto nor a bool": setting("jit", "maybe", AUTO_OR_BOOL),
    "a number for a bool": setting("jit", "1", AUTO_OR_BOOL),
    "no GPU index": setting(
        "devices.visible", "first", "expected 'all', 'none' or GPU indices such as '0,2'."
    ),
    "no such .npz file": flags(
        "--config.data.name=npz --config.data.dir=absent.npz",
        "received data.name=npz with data.dir='absent.npz', expected the path of an .npz file",
    ),
    "no such weights": setting(
        "model.weights", "absent.keras", "expected the path of an existing"
    ),
    "more sparsity than all": setting("pruning.final_sparsity", "80", "at most 1."),
    "all weights pruned": setting("pruning.final_sparsity", "1.0", "expected less than 1"),
    "sparsity that falls": flags(
        "--config.pruning.final_sparsity=0.5 --config.pruning.initial_sparsity=0.8",
        "received pruning.final_sparsity=0.5, expected at least pruning.initial_sparsity=0.8.",
    ),
    "no duration to prune at": setting("pruning.begin", "20", DURATION),
    "groups without sparsity": setting("pruning.m_by_n", "2:4", "set final_sparsity, too."),
    "groups of another sparsity": flags(
        "--config.pruning.final_sparsity=0.8 --config.pruning.m_by_n=2:4",
        "received pruning.final_sparsity=0.8 with pruning.m_by_n=2:4, whose sparsity is 0.5",
    ),
    "groups that come gradually": flags(
        "--config.pruning.final_sparsity=0.5 --config.pruning.m_by_n=2:4",
        "received pruning.m_by_n=2:4 with schedule=polynomial and threshold=layer",
        "use schedule=constant",
    ),
    "no groups": flags(
        "--config.pruning.final_sparsity=0.5 --config.pruning.m_by_n=4:2",
        "received pruning.m_by_n=4:2, expected 'm:n' with 0 < m < n, such as 2:4",
    ),
    "several targets for one threshold": flags(
        "--config.pruning.final_sparsity=0.5 --config.pruning.threshold=global "
        "--config.pruning.layers={'head':0.8}",
        "received pruning.layers.head=0.8 with pruning.threshold=global",
        "use 0 or 0.5, or threshold=layer",
    ),
    # What is not built yet is refused, never ignored.
    "data on the device": setting("data.placement", "device", "not yet", "Use host"),
    # Combinations that cannot work.
    "growth with a limit": flags(
        "--config.devices.memory_growth=true --config.devices.memory_limit_mb=100",
        "memory_growth=True", "memory_limit_mb=100, expected one of them",
    ),
    "--allow_growth with a limit": flags(
        "--allow_growth --config.devices.memory_limit_mb=100",
        "memory_growth=True", "memory_limit_mb=100, expected one of them",
    ),
    "several workers that nothing names": setting(
        "distribution.strategy", "multiworker", "nothing names the workers", "tfaccel.launch"
    ),
    "communication of one host": flags(
        "--config.distribution.strategy=mirrored --config.distribution.communication=ring",
        "received distribution.communication=ring with distribution.strategy=mirrored",
    ),
    "one device of several": flags(
        "--config.distribution.strategy=none --config.distribution.logical_cpus=2",
        "received distribution.strategy=none with distribution.logical_cpus=2: one device "
        "cannot be several.",
    ),
    "a batch that cannot be shared out": flags(
        "--config.distribution.logical_cpus=2 --config.accumulation=3",
        "received global_batch_size=64, expected a multiple of replicas x accumulation = "
        "2 x 3: try 66.",
    ),
    "more micro-steps than examples": flags(
        "--config.accumulation=100",
        "received global_batch_size=64, expected a multiple of replicas x accumulation = "
        "1 x 100: try 100.",
    ),
    "boundaries without steps": flags(
        "--config.schedule.boundaries=50%,75%",
        "received schedule.name=one_cycle with schedule.boundaries='50%,75%'",
        "go with 'steps', and only with it.",
    ),
    "steps without boundaries": flags(
        "--config.schedule.name=steps",
        "received schedule.name=steps with schedule.boundaries=''",
    ),
    "boundaries without a unit": flags(
        "--config.schedule.name=steps --config.schedule.boundaries=50,75",
        "received schedule.boundaries='50', expected a duration",
    ),
    "a size for images that have one": flags(
        "--config.data.image_size=64", "received data.image_size=64 for data.name=digits"
    ),
    "waiting for a metric of no data": flags(
        "--config.early_stopping.patience=3 --config.data.validation_share=0",
        "early_stopping",
        "val_loss",
        "data.validation_share",
    ),
    # Flags.
    "unknown flag": flags(
        "--workdri=x", "received the unknown flag --workdri. Did you mean --workdir?"
    ),
    "stray words": flags(
        "train now", "received 'train now', which is no flag: flags are written --name=value."
    ),
    "a flag without value": flags("--workdir", "--workdir"),
    "an empty folder name": flags("--workdir=", "received --workdir="),
    "no bool": flags(
        "--allow_growth=perhaps", "received allow_growth=perhaps, expected true or false"
    ),
    "no flag file": flags("--flagfile=absent", "absent"),
}  # fmt: skip


def drive():
    """Runs the cases of cases.json; the source of this is what the process runs."""
    import importlib.abc
    import importlib.util
    import json
    import os
    import sys
    import traceback
    from pathlib import Path

    from tfaccel import cli, train

    class NoTensorFlow(importlib.abc.Loader):
        """Ends a case that imports TensorFlow or Keras; looking for them is fine."""

        def find_spec(self, name, *_):
            if name in ("tensorflow", "keras"):
                return importlib.util.spec_from_loader(name, self)

        def exec_module(self, module):
            raise SystemExit(f"imports {module.__name__}")

    def run(folder, argv):
        os.chdir(folder / "cwd")
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), descriptor)
        try:
            status = cli.main(train.run, ["train", *argv])
        except SystemExit as exit:
            status = exit.code
        except BaseException:
            traceback.print_exc()
            status = 1
        (folder / "status").write_text(json.dumps(status))
        sys.stdout.flush()
        sys.stderr.flush()

    sys.meta_path.insert(0, NoTensorFlow())
    for folder, argv in json.loads(Path("cases.json").read_text()).items():
        child = os.fork()
        if not child:
            try:
                run(Path(folder), argv)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, fresh_python):
    root = tmp_path_factory.mktemp("cases")
    folders = {name: root / str(number) for number, name in enumerate(CASES)}
    for name, case in CASES.items():
        (folders[name] / "cwd").mkdir(parents=True)
        for file_name, text in case.files.items():
            (folders[name] / "cwd" / file_name).write_text(text)
    cases = {str(folders[name]): case.argv for name, case in CASES.items()}
    (root / "cases.json").write_text(json.dumps(cases))
    done = fresh_python("-c", f"{inspect.getsource(drive)}\ndrive()", cwd=root)
    assert done.returncode == 0, done.stderr
    return {
        name: Outcome(
            json.loads((folder / "status").read_text()),
            (folder / "stdout").read_text(),
            (folder / "stderr").read_text(),
            sorted({p.name for p in (folder / "cwd").iterdir()} - set(CASES[name].files)),
        )
        for name, folder in folders.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_is_refused_before_tensorflow_in_one_line(name, outcomes):
    outcome = outcomes[name]
    assert outcome.status == 2, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.endswith("\n")
    assert outcome.stderr.count("\n") == 1
    assert "Traceback" not in outcome.stderr
    assert "object at 0x" not in outcome.stderr
    assert len(outcome.stderr) < 500
    assert outcome.left_behind == []


@pytest.mark.parametrize("name", CASES)
def test_says_what_was_received_and_what_to_write_instead(name, outcomes):
    for part in CASES[name].parts:
        assert part in outcomes[name].stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--config=quickstrat"],
            "error: received --config=quickstrat, but there is no such file. Did you mean "
            f"quickstart? {PACKAGED}\n",
        ),
        (
            ["--config.learning_rate=1"],
            "error: received the config field learning_rate, which does not exist. Did you "
            "mean optimizer.learning_rate? --print_config lists all fields.\n",
        ),
        (
            ["--config.duration=3"],
            f"error: received duration='3', {DURATION}. Write duration=3ep or duration=3st.\n",
        ),
        (
            ["--workdri=x"],
            "error: received the unknown flag --workdri. Did you mean --workdir? Known: "
            "--allow_growth, --config, --print_config, --profile_steps, --workdir.\n",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_process_ends_with_status_2(argv, message, tmp_path, fresh_python):
    done = fresh_python("-m", "tfaccel.train", *argv, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "error: received no --workdir, expected the folder of a finished run.\n"),
        (
            ["--workdir=absent"],
            "error: received --workdir=absent, which holds no config.json, expected the folder "
            "of a run of tfaccel.train.\n",
        ),
        (
            ["--workdri=x"],
            "error: received the unknown flag --workdri. Did you mean --workdir? Known: "
            "--workdir.\n",
        ),
        (
            ["runs/quickstart"],
            "error: received 'runs/quickstart', which is no flag: flags are written "
            "--name=value.\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_evaluate_ends_with_status_2(argv, message, tmp_path, fresh_python):
    done = fresh_python("-m", "tfaccel.evaluate", *argv, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert list(tmp_path.iterdir()) == []
