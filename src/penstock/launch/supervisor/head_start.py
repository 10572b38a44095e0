"""A fork server that starts with the command, before anybody knows what it will fork.

Its imports take longer than all else before a launch, so they run beside it: while the data is
opened, the machine is looked at and the layout is chosen. What the server needs to know is guessed
from the run file without torch. A guess that turns out wrong costs a new server, nothing else.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from penstock.errors import PenstockError
from penstock.launch.supervisor import bytecode, environment, fence, preload
from penstock.launch.supervisor.bytecode import CompileAhead
from penstock.launch.supervisor.fork_client import ForkClient, modules
from penstock.meter import devices
from penstock.plan.search import choose
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run


class HeadStart:
    """The fork server of a launch, until the launch takes it or is refused."""

    def __init__(self, client: ForkClient | None = None) -> None:
        self._client = client
        self._compiling: CompileAhead | None = None

    def take(self, env: Mapping[str, str], modules: Sequence[str]) -> ForkClient:
        """Return a fork server for ranks with this environment and these modules, once.

        The caller closes it.
        """
        client, self._client = self._client, None
        if client and client.serves(env, modules):
            return client
        if client:
            client.close()
        return ForkClient(env, modules, preload.from_environment())

    def close(self) -> None:
        """End the server, unless it was taken."""
        if self._client:
            self._client.close()
        self._client = None
        if self._compiling:
            self._compiling.close()
            self._compiling = None

    def keep_bytecode(self, env: Mapping[str, str]) -> None:
        """Keep bytecode where the server of this environment does, if it does, and make it ahead.

        Without this the command would compile torch again at every start.
        """
        if folder := env.get(environment.BYTECODE):
            self._compiling = CompileAhead(folder, devices.cpu_cores())
            bytecode.keep_in(folder)


@contextlib.contextmanager
def begin(run: Run, several: bool = False) -> Iterator[HeadStart]:
    """Start the fork server of a run on this host; it ends with the block unless it is taken.

    `several` is for a host among others, whose ranks obey a fence.
    """
    early = _started(run, several)
    try:
        yield early
    finally:
        early.close()


def _started(run: Run, several: bool) -> HeadStart:
    try:
        machine = devices.guess()
        here = machine.ranks(run.cluster.accelerators)
        ranks = here if several else _expected_ranks(run, here)
    except PenstockError:  # the launch will say so
        return HeadStart()
    env = environment.for_fork_server(machine.threads(ranks))
    if several:
        env |= {fence.ENVIRONMENT: str(fence.fence_path(RunFolder(run.folder)))}
    needed = modules(machine.kind, run.train.compile)
    early = HeadStart(ForkClient(env, needed, preload.from_environment()))
    early.keep_bytecode(env)
    return early


def _expected_ranks(run: Run, ranks: int) -> int:
    """Return how many ranks the launch will most likely have, where there is room for `ranks`."""
    if choose.takes_all(run):
        return choose.usable_ranks(run, ranks)
    if run.layout and run.layout.replicate:
        return prod((run.layout.replicate, run.layout.per_replica))
    return ranks
