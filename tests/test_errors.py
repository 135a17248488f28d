import pytest

from tfaccel.errors import UserError, did_you_mean, one_line

NEEDS_TENSORFLOW = False


def test_user_error_is_a_value_error():
    # So that a caller who knows nothing of tfaccel can still catch it.
    assert issubclass(UserError, ValueError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one line", "one line"),
        ("two\nlines", "two lines"),
        ("  many \t\r\n\n spaces  ", "many spaces"),
        ("", ""),
        (ValueError("of an\nexception"), "of an exception"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 297 + "..."),
    ],
)
def test_one_line(text, expected):
    assert one_line(text) == expected


def test_one_line_of_another_length():
    assert one_line("abcdefghij", limit=8) == "abcde..."


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("adm", ["adam", "sgd"], "Did you mean adam? Known: adam, sgd."),
        ("ADAM", ["adam", "sgd"], "Did you mean adam? Known: adam, sgd."),
        ("resnet5", ["ResNet50", "VGG16"], "Did you mean ResNet50? Known: ResNet50, VGG16."),
        ("colour1", ["colour2", "colour3"],
         "Did you mean colour3 or colour2? Known: colour2, colour3."),
        ("xyz", ["sgd", "adam"], "Known: adam, sgd."),
    ],
)  # fmt: skip
def test_did_you_mean(name, known, expected):
    assert did_you_mean(name, known) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("name_07x", "Did you mean name_07?"), ("zzz", "")]
)
def test_did_you_mean_does_not_list_hundreds(name, expected):
    known = [f"name_{i:02d}" if i == 7 else f"{i}" * 9 for i in range(41)]
    assert did_you_mean(name, known) == expected
