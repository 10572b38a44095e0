"""The command itself: its help is quick, its list of verbs is right, shells can complete it."""

import ast
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from penstock.cli.main import VERBS, app, load_verb


def test_help_imports_no_verb_and_no_large_package() -> None:
    """These imports took most of a second. The time itself is no test: machines are shared."""
    code = (
        "import sys\nfrom penstock.cli.main import app\napp(['--help'], standalone_mode=False)\n"
        "large = {'torch', 'numpy', 'pydantic', 'tokenizers', 'blake3'}\n"
        "print([n for n in sys.modules if n in large or n.startswith('penstock.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    imported = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    # Verbs of Python, too; nothing is in them yet.
    rooms = {"penstock.plan", "penstock.simulate", "penstock.train"}
    below = {"penstock.errors", "penstock.output", "penstock.secret", "penstock.suggest"}
    assert imported <= {"penstock.cli", "penstock.cli.main"} | rooms | below


@pytest.mark.parametrize("name", VERBS)
def test_the_list_says_what_the_verb_says(name: str) -> None:
    command = load_verb(name)
    assert command.name == name
    paragraph = command.help.partition("\n\n")[0]
    assert VERBS[name].line == " ".join(paragraph.split())


def complete(words: str) -> list[str]:
    typed = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", **typed}
    done = CliRunner().invoke(app, prog_name="penstock", env=asked, catch_exceptions=False)
    return done.output.split()


def test_a_shell_completes_verbs_and_their_options() -> None:
    assert complete("penstock tr") == ["train"]
    assert complete("penstock data bu") == ["build"]
    assert complete("penstock train --for") == ["--fork"]
