"""What the run file says of experts: a whole shape, a balance, and clear words where they miss."""

import pytest

from penstock.errors import PenstockError
from penstock.run.fingerprint import fingerprint

OWN = (
    "[model]\nlayers=3\nhidden=16\nheads=2\nexperts=4\nexperts_active=2\nexpert_ffn=8\n"
    "[data]\nsequence=64\n[train]\nlearning_rate=1e-3\n"
)


def test_an_own_shape_with_experts(run_of):
    shape = run_of(OWN, "model.shared_experts=1", "model.router=sigmoid").model.shape(50)
    assert (shape.experts, shape.experts_active, shape.expert_ffn) == (4, 2, 8)
    assert (shape.shared_experts, shape.dense_layers, shape.router) == (1, 0, "sigmoid")
    assert run_of(OWN).model.shape(50).router == "softmax"
    mixed = run_of(OWN, "model.dense_layers=1", "model.ffn=32").model.shape(50)
    assert (mixed.dense_layers, mixed.ffn) == (1, 32)


@pytest.mark.parametrize(
    ("override", "field", "what"),
    [
        ("model.dense_layers=1", "model.ffn", "layers without experts need a width"),
        ("model.experts_active=5", "model.experts_active", "between 1 and 4 experts"),
        ("model.router=best", "model.router", "softmax"),
    ],
)
def test_fields_that_do_not_fit_together_are_reported(run_of, override, field, what):
    with pytest.raises(PenstockError) as error:
        run_of(OWN, override)
    assert field in str(error.value)
    assert what in str(error.value)


def test_a_dense_preset_with_experts_needs_their_width(run_of):
    with pytest.raises(PenstockError, match="experts need a width"):
        run_of('[model]\npreset = "llama-3m"\nexperts = 4\nexperts_active = 2\n')


def test_experts_are_balanced_unless_the_model_comes_balanced(run_of):
    assert run_of(OWN).balance_rate == 1e-3
    assert run_of(OWN, "train.balance_rate=0").balance_rate == 0
    opened = '[model]\nfrom = "somewhere"\n[train]\nlearning_rate = 1e-5\n'
    assert run_of(opened).balance_rate == 0
    assert run_of(opened, "train.balance_rate=1e-4").balance_rate == 1e-4


def test_the_balance_counts_in_the_fingerprint_as_it_was_chosen(run_of):
    left_open = fingerprint(run_of(OWN))
    assert fingerprint(run_of(OWN, "train.balance_rate=1e-3")) == left_open
    assert fingerprint(run_of(OWN, "train.balance_rate=0")) != left_open
    assert fingerprint(run_of(OWN, "model.router=sigmoid")) != left_open
