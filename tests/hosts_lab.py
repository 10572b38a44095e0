"""Hosts of a run as plain processes on this machine: each has a name, an address and a memory.

They may share a run folder, or have one each (`own_folders`) and meet in the durable place of the
run file. `inside` puts a host somewhere, such as into a network namespace.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from penstock.launch.supervisor import preload
from penstock.ledger.journal.read import JournalLine, read_curve, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.run.folder import RunFolder

PATIENCE_S = 150.0  # for anything: tests run on busy machines


class RecordedRun:
    """A run that is read while it trains, wherever its hosts are."""

    patience_s = PATIENCE_S

    def journals(self) -> Iterable[Path]:
        """Return the journals of all hosts."""
        raise NotImplementedError

    def alive(self) -> bool:
        """Return whether anybody is left who trains."""
        raise NotImplementedError

    def events(self, kind: str = "") -> list[JournalLine]:
        """Of whoever led, on any host; each once."""
        folders = sorted(set(self.journals()))
        found = [e for folder in folders for e in read_events(folder / SUPERVISOR)]
        unique = {(e.t, e.kind, json.dumps(e.payload, sort_keys=True)): e for e in found}
        return [e for e in sorted(unique.values(), key=lambda e: e.t) if kind in ("", e.kind)]

    def curve(self) -> list[tuple[int, float, int]]:
        """(attempt, t, step) of all steps on record, of whoever led."""
        files = [f for folder in set(self.journals()) for f in journal_files(folder, "curve")]
        return sorted(
            {(f.attempt, float(p["t"]), int(p["step"])) for f in files for p in read_curve(f.path)}
        )

    def reached(self) -> int:
        """The furthest step that any attempt has on record."""
        return max((step for _, _, step in self.curve()), default=0)

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience_s
        while not true():
            assert time.monotonic() < deadline, f"not in {self.patience_s:g} s: {what}\n{self}"
            assert self.alive(), f"all ended: {what}\n{self}"
            time.sleep(0.05)

    def until_step(self, step: int) -> None:
        self.until(lambda: self.reached() >= step, f"step {step}")

    def until_on(self, *nodes: str, after: int = -1) -> int:
        """An attempt on just these hosts trains; its number."""

        def on() -> list[int]:
            return [
                e.attempt
                for e in self.events("mustered")
                if e.attempt is not None
                and e.attempt > after
                and sorted(h["node"] for h in e.payload["hosts"]) == sorted(nodes)  # type: ignore
            ]

        def trains() -> bool:
            attempts = on()
            made = [number for number, _, _ in self.curve()] if attempts else []
            return bool(attempts) and made.count(attempts[-1]) > 2

        self.until(trains, f"an attempt on {nodes} after {after}")
        return on()[-1]

    def leader(self) -> str:
        led = [e for e in self.events() if e.kind in ("invocation", "took_over")]
        return str(led[-1].payload["node"])


class Lab(RecordedRun):
    def __init__(
        self,
        folder: Path,
        run_file: Path,
        name: str,
        own_folders: bool = False,
        inside: Callable[[str], Sequence[str]] = lambda node: (),
        address: Callable[[str], str] = lambda node: "127.0.0.1",
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.run_file, self.name = folder, run_file, name
        self.own_folders, self.inside, self.address = own_folders, inside, address
        self.env = env or {}
        self.hosts: dict[str, subprocess.Popen[bytes] | preload.ForkedProcess] = {}
        self.logs: list[Path] = []
        self.forgotten: list[Path] = []  # audits of machines that are gone

    def run_folder(self, node: str) -> RunFolder:
        return RunFolder(self.folder / (f"runs-{node}" if self.own_folders else "runs") / self.name)

    def start(self, node: str, *overrides: str) -> None:
        words = ["penstock", "train", str(self.run_file)]
        words += [f"dir={self.run_folder(node).path.parent}", *overrides]
        log = self.folder / f"{node}-{len(self.logs)}.log"
        self.logs.append(log)
        memory = self.folder / "memory" / node
        memory.mkdir(parents=True, exist_ok=True)
        env = os.environ | self.env
        env |= {"PENSTOCK_NODE": node, "PENSTOCK_MEMORY": str(memory)}
        if address := self.address(node):
            env["PENSTOCK_ADDRESS"] = address
        with log.open("wb") as out, open(os.devnull) as nothing:
            if inside := self.inside(node):
                env.pop(preload.ENVIRONMENT, None)  # it would fork ranks outside
                self.hosts[node] = subprocess.Popen(
                    [*inside, sys.executable, "-m", *words],
                    env=env,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            else:
                fds = {0: nothing.fileno(), 1: out.fileno(), 2: out.fileno()}
                self.hosts[node] = preload.python_m(words, env, fds)

    def signal(self, node: str, number: int) -> None:
        self.hosts[node].send_signal(number)

    def kill(self, node: str) -> None:
        """The host is gone: its ranks go with the process that started them."""
        self.signal(node, signal.SIGKILL)
        self.hosts[node].wait()

    def forget(self, node: str) -> None:
        """A new machine of that name: nothing on its disk, nothing in its memory."""
        folder = self.run_folder(node)
        aside = self.folder / f"audit-{len(self.forgotten)}"
        if folder.audit.is_dir():
            folder.audit.rename(aside)
            self.forgotten.append(aside)
        shutil.rmtree(folder.path)
        shutil.rmtree(self.folder / "memory" / node)
        folder.audit.mkdir(parents=True)

    def ends(self, node: str) -> int:
        """Its exit code, at the end of the run; waited for as long as it gets on."""
        at, since = -1, time.monotonic()
        while (code := self.hosts[node].poll()) is None:
            if (reached := self.reached()) != at:
                at, since = reached, time.monotonic()
            assert time.monotonic() - since < PATIENCE_S, f"{node} does not end\n{self}"
            time.sleep(0.2)
        return code

    def said(self, node: str) -> str:
        return "".join(log.read_text() for log in self.logs if log.name.startswith(f"{node}-"))

    def close(self) -> None:
        for process in self.hosts.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def journals(self) -> Iterable[Path]:
        return [self.run_folder(node).journal for node in self.hosts]

    def alive(self) -> bool:
        return any(process.poll() is None for process in self.hosts.values())

    def __str__(self) -> str:
        told = "\n".join(f"{e.t:.2f} {e.kind} {e.payload}" for e in self.events())
        logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)
        return f"{told}\n{logs}"
