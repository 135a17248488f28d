import pytest

from tfaccel import pruning
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False


@pytest.mark.parametrize("arguments", [{}, {"final_sparsity": 0.0}])
def test_no_pruning_is_fine(arguments):
    assert pruning.build(**arguments) is None


@pytest.mark.parametrize("sparsity", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("ask", [pruning.build, pruning.check])
def test_pruning_is_refused_rather_than_ignored(ask, sparsity):
    with pytest.raises(UserError) as error:
        ask(final_sparsity=sparsity)
    assert str(error.value) == (
        f"received pruning.final_sparsity={sparsity}: pruning is not there yet. Leave the "
        "field at 0; it comes with a later release."
    )
