"""One rank of a run: `python -m penstock.train.rank FOLDER ATTEMPT`, started by a launcher.

The rank judges itself: its last record in the journal says how it ended. Exit codes are not enough,
since torch has been seen to abort at interpreter exit after all work was done.
"""

from penstock.meter.clock import now

BEGAN = now()  # before the heavy imports: they are part of start-up

import faulthandler  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from penstock.errors import OwnCodeError, PenstockError  # noqa: E402
from penstock.guard.detect.failpoints import Failpoints  # noqa: E402
from penstock.guard.detect.pulse import Pulse  # noqa: E402
from penstock.ledger.journal.events import (  # noqa: E402
    CheckpointSpan,
    RankEnded,
    RankJoined,
    RankStarted,
)
from penstock.ledger.journal.writer import Journal  # noqa: E402
from penstock.meter.orphan import die_with  # noqa: E402
from penstock.plan.job.layout import Layout  # noqa: E402
from penstock.policy.restart import WELL  # noqa: E402
from penstock.run.folder import RunFolder  # noqa: E402
from penstock.run.load import load  # noqa: E402
from penstock.run.schema.code import changed_code  # noqa: E402
from penstock.run.schema.run import Run  # noqa: E402
from penstock.train.loop import build  # noqa: E402
from penstock.train.rank_context import RankContext  # noqa: E402
from penstock.train.replicas.live_world import join_live  # noqa: E402
from penstock.train.world.context import open_context_early  # noqa: E402
from penstock.train.world.world import World, join  # noqa: E402


def main(where: str, attempt: int) -> str:
    """Run this rank; return how it ended, which the journal also records."""
    folder = RunFolder(Path(where))
    rank = int(os.environ["RANK"])
    life = int(os.environ.get("PENSTOCK_LIFE", "0"))  # above 0: in the place of a lost process
    journal = Journal(folder.journal, attempt, range(rank, rank + 1), clock=now, again=life > 0)
    journal.write(RankStarted(pid=os.getpid()), t=BEGAN)
    traps = Failpoints(folder.traps, rank, attempt)
    pulse = Pulse(folder.make_scratch(), rank, attempt, traps, folder.audit)
    try:
        result, weights = work(folder, journal, pulse)
        journal.write(RankEnded(result=result, weights_hash=weights))
        return result
    except PenstockError as error:
        if isinstance(error, OwnCodeError):  # whose stack leads into the user's code
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        journal.write(RankEnded(result="refused", exit_code=error.exit_code, error=str(error)))
    except Exception as error:
        traceback.print_exc()
        if out_of_memory(error):
            journal.write(RankEnded(result="oom", exit_code=1, error=f"out of memory: {error}"))
        else:
            journal.write(RankEnded(result="failed", error=f"{type(error).__name__}: {error}"))
    return "failed"


def out_of_memory(error: Exception) -> bool:
    """Return whether an accelerator or, by torch's own words, the host had no memory left."""
    full = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, full) or "DefaultCPUAllocator: can't allocate" in str(error)


def work(folder: RunFolder, journal: Journal, pulse: Pulse) -> tuple[str, str]:
    """Join the other ranks, train, and return the result and the hash of the weights."""
    launch = folder.read_launch_record()
    open_context_early(launch.device)
    run = load(folder.run_file)
    layout = Layout(**launch.attempt_layout)
    refuse_other_code(run, launch.sources)
    if run.train.deterministic:
        torch.use_deterministic_algorithms(True)
        # By default each new tensor is filled first, against code that reads what nobody wrote.
        torch.utils.deterministic.fill_uninitialized_memory = False
    pulse.at("join")
    if run.guard.mode == "live":
        world: World = join_live(layout, launch.device, run.guard.timeout)
    else:
        apart = run.train.sync.apart and not run.sites  # a site is one replica
        world = join(layout, launch.device, run.guard.timeout, apart=apart)
    journal.write(RankJoined())
    pulse.at("build")
    trainer = build(RankContext(folder, run, layout, world, journal, pulse))
    result = trainer.fit()
    pulse.at("save")
    start = now()
    weights = trainer.state.weights_hash()
    pulse.at("end")
    journal.write_span(CheckpointSpan(), start, now())
    world.gather(None)  # nobody reports success before everybody has it
    return result, weights


def refuse_other_code(run: Run, launched_with: Mapping[str, str]) -> None:
    """Refuse a file that was edited while its run went on: a restart would change the run."""
    if code := changed_code(run, launched_with):
        raise PenstockError(
            f"{code.words}: {code.path} has changed since the run was launched; put it back and "
            "give the same command, or start a new run from the last checkpoint with `--fork NAME`"
        )


if __name__ == "__main__":
    die_with(int(os.environ["PENSTOCK_SUPERVISOR"]))
    # Stops are the supervisor's to handle; a scheduler signals the whole group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # `kill -USR1`: every thread's stack on stderr, also of a rank that is stuck in a collective.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    outcome = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if outcome in WELL else 1)  # past torch's own exit, see above
