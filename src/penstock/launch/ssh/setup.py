"""`penstock train --setup`: a venv on every host with what Penstock has here, in the same versions.

Nothing is installed outside of the venv, and nothing without `--setup`.
"""

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import penstock
from penstock import __version__
from penstock.errors import PenstockError, RunFailed
from penstock.launch.ssh import checks
from penstock.launch.ssh.hosts import (
    Ssh,
    SshAnswer,
    SshHost,
    Unreachable,
    connected,
    each,
    nodes_of,
    quoted_path,
)
from penstock.run.schema.run import Run

INSTALL_S = 1800.0
EXTRAS = {"hosts": "cryptography", "data": "obstore"}  # and what tells that it is installed here
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
_VENV = re.compile(r"((?:~|/).*)/bin/python[0-9.]*")
Say = Callable[[str], None]


def set_up(run: Run, say: Say) -> None:
    """Make the venv that `cluster.ssh.python` names on each host, unless it is there already."""
    if run.cluster.launcher != "ssh":
        raise PenstockError(
            f'--setup: it prepares hosts of cluster.launcher = "ssh", and this run has '
            f'"{run.cluster.launcher}"; leave it out'
        )
    if wrong := checks.section_refusals(run):
        raise PenstockError("\n".join(wrong))
    venv = venv_of(run.cluster.ssh.python)
    ssh, nodes = connected(run.cluster.ssh), nodes_of(run.cluster.ssh)
    wheel, pins = build_wheel(), "\n".join(pinned()) + "\n"

    def prepare(node: str) -> str:
        try:
            return _prepare(
                ssh, nodes[node], venv, wheel, pins, lambda what: say(f"{node}: {what}")
            )
        except Unreachable as error:
            return str(error)

    wrong = [f"{node}: {why}" for node, why in each(nodes, prepare).items() if why]
    if wrong:
        raise RunFailed("\n".join(wrong))


def venv_of(python: str) -> str:
    """Return the venv that a path of a Python belongs to."""
    found = _VENV.fullmatch(python)
    if found is None:
        raise PenstockError(
            f'cluster.ssh.python = "{python}": --setup makes a venv and has to know where; write '
            'python = "~/penstock-venv/bin/python"'
        )
    return found[1]


def _prepare(ssh: Ssh, host: SshHost, venv: str, wheel: bytes, pins: str, say: Say) -> str:
    """Prepare one host; return why not where it fails."""
    looked = checks.look(ssh, host, "~")
    if isinstance(looked, dict) and looked["penstock"] == __version__ and looked["torch"]:
        say(f"has Penstock {__version__} in {venv}; nothing to install")
        return ""
    say(f"makes a venv in {venv} and installs Penstock {__version__} with its pinned requirements")
    where = quoted_path(venv)
    name = wheel_name()
    torch = next(pin for pin in pins.splitlines() if pin.startswith("torch=="))
    extras = ",".join(extra for extra, module in EXTRAS.items() if _installed(module))
    pip = f"{where}/bin/python -m pip install -q --disable-pip-version-check"
    wanted = f'{where}/"{name}[{extras}]"' if extras else f"{where}/{name}"
    for command, given in (
        (f"test -x {where}/bin/python || python3 -m venv {where}", ""),
        (f"base64 -d > {where}/{name}", base64.b64encode(wheel).decode()),
        (f"cat > {where}/constraints.txt", pins),
        (_torch_command(pip, torch), ""),
        (f"{pip} --force-reinstall --no-deps {where}/{name}", ""),
        (f"{pip} -c {where}/constraints.txt {wanted}", ""),
    ):
        answer = ssh.run(host, command, given, INSTALL_S)
        if answer.code != 0:
            return f"`{command}` failed: {_why(answer)}"
    say("is ready")
    return ""


def _torch_command(pip: str, torch: str) -> str:
    """Return the line that installs torch: a CPU build where the host has no GPU, as it is smaller
    by gigabytes than PyPI's default.
    """
    plain = f"{pip} {torch}"
    return (
        f"if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then {plain}; "
        f"else {pip} {torch}+cpu 2>/dev/null || {plain} --extra-index-url {CPU_WHEELS}; fi"
    )


def pinned() -> Iterator[str]:
    """Yield every package that is installed here with its version, for pip's constraints."""
    seen = set()
    for one in distributions():
        name = one.metadata["Name"]
        if name and name.lower() not in seen and name.lower() != "penstock":
            seen.add(name.lower())
            # "+cpu" and the like are builds of one machine.
            yield f"{name}=={one.version.partition('+')[0]}"


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def wheel_name() -> str:
    return f"penstock-{__version__}-py3-none-any.whl"


def build_wheel() -> bytes:
    """Pack this installation of Penstock as a wheel: the hosts get the very same files."""
    try:
        about = distribution("penstock")
        metadata = about.read_text("METADATA")
    except PackageNotFoundError:
        metadata = None
    if not metadata:
        raise PenstockError(
            "--setup: Penstock is not installed here but run from a folder, so its requirements "
            "are not known; `pip install` it first"
        )
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {__version__}", metadata, count=1)
    root = Path(penstock.__file__).parent
    files = {
        f"penstock/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"penstock-{__version__}.dist-info"
    files |= {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: penstock\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\npenstock = penstock.cli.main:main\n",
    }
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _digest(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _why(answer: SshAnswer) -> str:
    if answer.code is None:
        return answer.err
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit code {answer.code}"])[-1]
