"""`[data]`: later fields leave older runs as they were, and say what they say."""

import pytest

from penstock.errors import PenstockError
from penstock.run.fingerprint import fingerprint
from penstock.run.load import load
from penstock.run.save import to_table, to_toml

TEXT = '[model]\npreset = "llama-3m"\n'


def test_defaults_are_left_out_and_all_else_is_kept(run_of, tmp_path):
    plain = run_of(TEXT)
    assert set(to_table(plain)["data"]) == {"dataset", "on_bad_shard"}
    given = {
        "data.order": "window",
        "data.across_documents": "false",
        "data.cache": "/big/cache",
        "data.cache_bytes": "3 GiB",
    }
    run = run_of(TEXT, *(f"{name}={value}" for name, value in given.items()))
    assert (run.data.order, run.data.across_documents) == ("window", False)
    assert (run.data.cache, run.data.cache_bytes) == ("/big/cache", 3 << 30)
    path = tmp_path / "saved.toml"
    path.write_text(to_toml(run))
    assert load(path) == run


@pytest.mark.parametrize("override", ["data.order=window", "data.across_documents=false"])
def test_a_change_of_the_numbers_changes_the_fingerprint(run_of, override):
    assert fingerprint(run_of(TEXT)) != fingerprint(run_of(TEXT, override))


def test_parts(run_of):
    assert run_of(TEXT, "data.dataset=a").data.parts == [("a", 1.0)]
    mixed = run_of(TEXT, 'data.mix=[{dataset="a", weight=3}, {dataset="b", weight=1}]')
    assert mixed.data.parts == [("a", 3.0), ("b", 1.0)]


def test_an_unknown_order_is_refused(run_of):
    with pytest.raises(PenstockError, match="window"):
        run_of(TEXT, "data.order=sorted")
