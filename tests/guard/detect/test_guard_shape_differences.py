"""A checkpoint of another model is told by the first weights that differ."""

from dataclasses import replace

from penstock.catalog.models import preset
from penstock.guard.detect.shape_differences import shape_differences
from penstock.model.open.names import tensor_shapes

SHAPE = preset("llama-3m")
OWN = tensor_shapes(SHAPE)


def test_the_same_weights_have_none() -> None:
    assert shape_differences({name: list(size) for name, size in OWN.items()}, OWN) == ""


def test_sizes_that_differ_come_first() -> None:
    other = tensor_shapes(replace(SHAPE, ffn=SHAPE.ffn * 2, layers=SHAPE.layers + 1))
    said = shape_differences(other, OWN)
    width = f"{SHAPE.ffn * 2} × {SHAPE.hidden} there and {SHAPE.ffn} × {SHAPE.hidden} in the model"
    assert said.startswith(f"layers.0.ffn.gate.weight is {width}; ")
    assert "; and " in said


def test_names_that_one_has_alone() -> None:
    tied, apart = (
        tensor_shapes(replace(SHAPE, tied=True)),
        tensor_shapes(replace(SHAPE, tied=False)),
    )
    assert shape_differences(tied, apart) == "head.weight is not in it"
    assert shape_differences(apart, tied) == "head.weight is not in the model"
