"""`penstock watch` as a process: its first line is the address, Ctrl-C ends it."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest

import commands
from made_run import made_run

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0"])
def test_the_first_line_is_the_address_and_ctrl_c_ends_it(tmp_path: Path, where: str) -> None:
    made_run(tmp_path)
    options = ["made", "--dir", str(tmp_path), "--port", "0", "--no-open", "--host", where]
    process = commands.popen("watch", *options)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://")
        assert "run=made" in address
        assert ("token=" in address) == (where == "0.0.0.0")
        here = "http://127.0.0.1:" + address.removeprefix("http://").split(":")[1]
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(here) as page:
            assert b"Penstock" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_for_programs_there_is_no_server(tmp_path: Path) -> None:
    made_run(tmp_path)
    done = commands.run("watch", "made", "--dir", tmp_path, "--json")
    assert json.loads(done.stdout)["made"]["headline"]["step"] == 40


def test_an_unknown_run_is_a_mistake(tmp_path: Path) -> None:
    done = commands.run("watch", "nowhere", "--dir", tmp_path, code=2)
    assert "no run 'nowhere'" in done.stderr
