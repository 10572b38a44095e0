"""Messages in Python name arguments of functions, not options of the command line."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.arguments import FLAGS, VALUES, in_python
from penstock.errors import PenstockError
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save

SOURCE = Path(penstock.__file__).parent
# Verbs that have no function in Python. What they say is for the command line only.
OTHER_VERBS = {
    "cli",
    "drill",
    "watch",
    "data/build/on_ray.py",
    "data/workers/ray_cluster.py",
    "guard/convert/foreign.py",
    "guard/convert/source.py",
    "launch/doctor",
    "launch/engines",  # options of the commands that they call
    "launch/prepare/adopt.py",
    "launch/ssh",
    "launch/vary.py",
    "plan/scaling/caps.py",
    "plan/scaling/nodes.py",
    "plan/within/limits.py",
    "simulate/vary.py",
    "simulate/compare/screen.py",
    "simulate/rent/screen.py",
    "run/init.py",
    "run/clusters/load.py",
    "arguments.py",
}
COMMAND = re.compile(r"`penstock [^`]*`|^penstock .*")
OPTION = re.compile(r"(?<![\w-])--([a-z]\w*)(?![\w-])")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("anew with `--fresh`, which", "anew with `fresh=True`, which"),
        ("with `--fork NAME`; or", 'with `fork="NAME"`; or'),
        ("--fork other: there is no run", 'fork="other": there is no run'),
        ("--fork 'a/b': not a name", "fork='a/b': not a name"),
        ("--seed -1: write one", "seed=-1: write one"),
        ("--days 0.5: too few", "days=0.5: too few"),
        ("--fork and --fresh: give one", "fork=… and fresh=True: give one"),
        ("--best and --step 5: two checkpoints", "best=True and step=5: two checkpoints"),
        ("with --force, or name another with --out", "with force=True, or name another with out=…"),
        (
            "`penstock init --out x --force` writes one",
            "`penstock init --out x --force` writes one",
        ),
        ("--stepwise and --forced are none", "--stepwise and --forced are none"),
    ],
)
def test_options_become_arguments(said: str, told: str) -> None:
    assert in_python(said) == told


def test_every_option_that_can_reach_python_is_an_argument_there() -> None:
    functions = [penstock.train, penstock.generate, penstock.export, penstock.evaluate]
    functions += [penstock.simulate, penstock.rent, penstock.compare]
    known = {name for one in functions for name in inspect.signature(_function(one)).parameters}
    assert set(FLAGS) | set(VALUES) <= known
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        if {str(where), str(where.parent), where.parts[0]} & OTHER_VERBS:
            continue
        for line, text in messages(path):
            named = set(OPTION.findall(COMMAND.sub("", text)))
            assert named <= {*FLAGS, *VALUES}, f"{where}:{line} speaks of {named}: {text!r}"


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a file but its docstrings, the parts of an f-string as one."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [p for p in node.values if isinstance(p, ast.Constant)]
            skipped |= set(parts)
            yield node.lineno, "".join(str(part.value) for part in parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def _function(verb: object) -> Callable[..., object]:
    """`penstock.train` is a package that can be called."""
    return verb if inspect.isfunction(verb) else type(verb).__call__  # type: ignore[return-value]


def test_a_refused_change_names_the_arguments_in_python(run_file: Callable[..., Path]) -> None:
    file = run_file()
    folder = RunFolder(load(file).folder)
    folder.make()
    save(load(file), folder.run_file)
    changed = penstock.load(file, "train.seed=7")
    for verb in (penstock.train, penstock.check):
        with pytest.raises(PenstockError, match="another run file") as raised:
            verb(changed)
        assert '`fork="NAME"`' in str(raised.value)
        assert "`fresh=True`" in str(raised.value)
        assert "--" not in str(raised.value)
