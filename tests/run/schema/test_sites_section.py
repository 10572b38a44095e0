"""`[sites]` of a run file: defaults, what does not go together, and the fingerprint."""

import pytest

from penstock.errors import PenstockError
from penstock.run.diff import diff
from penstock.run.fingerprint import fingerprint
from penstock.run.summary import run_lines

TEXT = """\
[model]
preset = "llama-3m"
[train]
batch_tokens = 8192
sync.local_steps = 30
[sites]
bucket = "s3://bucket/x"
name = "berlin"
"""


def test_half_of_the_sites_are_a_quorum(run_of):
    assert run_of(TEXT).sites.needed == 1
    assert run_of(TEXT, "sites.count=3").sites.needed == 2
    assert run_of(TEXT, "sites.count=3", "sites.quorum=3").sites.needed == 3


def test_check_says_where_sites_meet(run_of):
    lines = run_lines(run_of(TEXT, "sites.grace=2 min"))
    told = "sites      berlin, of 2 that meet in s3://bucket/x; a round needs 1 and waits 2 min"
    assert told in lines


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("sites.count=1", "too few sites"),
        ("sites.quorum=3", "so no round would end; write 2 or less"),
        ("sites.name=a b", "not a name of a site"),
        ("sites.name=../b", "not a name of a site"),
        ("sites.bucket=ftp://x", "not a place that can be written"),
        ("train.sync.local_steps=1", "sites meet after some steps of their own"),
        ("train.sync.stream=2", "sites exchange the whole model at the end of a round"),
        ("sites.count=64", "32 samples of 256 tokens for 64 sites"),
        ("train.steps=20", "so replicas would never agree"),
    ],
)
def test_what_does_not_go_together_is_refused(run_of, override, what):
    with pytest.raises(PenstockError) as caught:
        run_of(TEXT, override)
    assert what in str(caught.value)


def test_only_the_cut_of_a_batch_decides_numbers(run_of):
    run = run_of(TEXT)
    same = run_of(TEXT, "sites.name=paris", "sites.bucket=/tmp/x", "sites.grace=1 s")
    assert fingerprint(run) == fingerprint(same)
    assert all(change.safe for change in diff(run, same))
    other = run_of(TEXT, "sites.count=4")
    assert fingerprint(run) != fingerprint(other)
    assert [change.safe for change in diff(run, other)] == [False]
