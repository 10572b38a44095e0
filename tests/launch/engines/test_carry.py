"""What a run takes along to machines that share no disk with this one."""

import pytest

from engine_runs import job_of
from penstock.errors import PenstockError
from penstock.launch.engines.carry import RUN_FILE, carry
from penstock.run.load import load
from penstock.run.schema.code import loss_code


def write_loss(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def smooth(logits, targets):\n    return logits.mean()\n")


@pytest.mark.parametrize("written", ["my.py", "code/my.py", "../my.py", "{tmp}/my.py"])
def test_own_code_is_found_beside_the_run_file_and_is_the_same_code(tmp_path, monkeypatch, written):
    """The nodes load what was carried from a folder of their own, and it keeps its identity."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    written = written.format(tmp=tmp_path)
    write_loss(here / written)
    run = job_of("kubernetes", f"train.loss={written}:smooth").run
    there = tmp_path / "there"
    for path, text in carry(run).files.items():
        (there / path).parent.mkdir(parents=True, exist_ok=True)
        (there / path).write_text(text)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    code = loss_code(load(there / RUN_FILE).train.loss)
    assert code.path.is_relative_to(there)
    monkeypatch.chdir(here)
    assert code.identity == loss_code(run.train.loss).identity


def test_everything_else_of_the_run_stays_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = job_of("sky", "train.steps=12", "guard.grace=2 min", "cluster.nodes=3").run
    (tmp_path / RUN_FILE).write_text(carry(run).files[RUN_FILE])
    assert load(RUN_FILE) == run


def test_a_cluster_file_travels_and_a_name_of_the_catalog_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text('nodes = 2\n[accelerator]\nname = "H100"\n')
    assert set(carry(job_of("sky", "cluster.use=lab.toml").run).files) == {"lab.toml", RUN_FILE}
    assert set(carry(job_of("sky", "cluster.use=a3-mega").run).files) == {RUN_FILE}


def test_a_file_that_is_no_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(PenstockError, match=r'data.chat_template = "x.jinja": .*it is no text'):
        carry(job_of("sky", "data.chat_template=x.jinja").run)
