"""An address that anyone could post to is never shown whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import secret
from penstock.errors import PenstockError
from penstock.run.diff import describe_changes, diff
from penstock.run.save import to_table
from penstock.run.summary import run_facts

TEXT = '[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\n'
HOOK = "https://hooks.slack.com/services/T0/B0/s3cr3t"


def test_a_change_shows_the_host_alone(run_of):
    changes = diff(run_of(TEXT, f"log.webhook={HOOK}"), run_of(TEXT, f"log.webhook={HOOK}2"))
    assert describe_changes(changes) == (
        'log.webhook: "https://hooks.slack.com/…" → "https://hooks.slack.com/…"'
    )


def test_what_programs_read_and_checkpoints_hold_shows_the_host_alone(run_of):
    run = run_of(TEXT, f"log.webhook={HOOK}")
    assert "s3cr3t" not in json.dumps(run_facts(run))
    assert secret.visible_table(to_table(run))["log"]["webhook"] == "https://hooks.slack.com/…"
    assert run.log.webhook == HOOK


def test_an_address_of_a_mixture_shows_no_password(run_of):
    mix = 'data.mix=[{dataset="s3://k:s3cr3t@b/x", weight=1}, {dataset="tiny", weight=2}]'
    run = run_of(TEXT, mix)
    assert "s3cr3t" not in json.dumps(run_facts(run))
    assert [part["dataset"] for part in run_facts(run)["run"]["data"]["mix"]] == [
        "s3://…@b/x",
        "tiny",
    ]


def test_the_name_of_a_variable_is_no_secret(run_of):
    run = run_of(TEXT, "log.webhook=$SLACK_HOOK")
    assert run_facts(run)["run"]["log"]["webhook"] == "$SLACK_HOOK"


@pytest.mark.parametrize(
    "written",
    [
        "hooks.slack.com/s3cr3t",
        "ftp://x/s3cr3t",
        "https:///s3cr3t",
        "$2s3cr3t-",
        "http://x:y/s3cr3t",
    ],
)
def test_a_bad_address_is_refused_without_being_shown(run_of, written):
    with pytest.raises(PenstockError, match=r"log\.webhook = .*; write") as error:
        run_of(TEXT, f"log.webhook={written}")
    assert "s3cr3t" not in str(error.value) or written.startswith("$")


@given(st.text(min_size=1, max_size=30))
def test_masked_shows_no_path(path):
    assert secret.masked(f"https://host/{path}") in ("https://host/…", "…")
