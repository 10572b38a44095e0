"""The environment variables of the processes of ranks."""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.home import home
from penstock.launch.supervisor import bytecode
from penstock.launch.supervisor.addresses import network
from penstock.meter import clock
from penstock.meter.rendezvous import LOOPBACK
from penstock.private import private_folder

BYTECODE = "PYTHONPYCACHEPREFIX"  # Python reads it when it starts
FLIGHT = "flight-"  # `flight-0`, and `flight-0.pipe` to ask rank 0 for it
FLIGHT_COLLECTIVES = 2000  # that are kept


def for_fork_server(threads: int) -> dict[str, str]:
    """Return what C libraries read when they are loaded: the same for all ranks of a host."""
    env = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait starve their neighbours on a shared machine.
        "OMP_WAIT_POLICY": "passive",
        # Otherwise glibc gives large tensors back to the kernel and faults them in again, which
        # takes up to a tenth of a step on a CPU.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "PYTHONUNBUFFERED": "1",
        clock.ENVIRONMENT: repr(clock.OFFSET_S),
        # The usual check for GPUs opens the driver, which does not survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    return env | _compiled_before()


def _compiled_before() -> dict[str, str]:
    """Return where compiled layers and kernels are kept: no start compiles what an earlier one did.

    What is found there is run, so the folder is made private.
    """
    folder = home() / "compiled"
    with contextlib.suppress(OSError):  # a full disk; or a folder that its owner shares on purpose
        private_folder(folder)
    env = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        # Graphs as torch traced them, and the kernels made from them. The defaults of torch are
        # the same today.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    # A process that has compiled something has torch's default in its environment: not a choice.
    default = os.path.join(tempfile.gettempdir(), "torchinductor_")
    chosen = {name: os.environ[name] for name in env if os.environ.get(name)}
    env |= {name: value for name, value in chosen.items() if not value.startswith(default)}
    if bytecode.is_lacking():
        env |= {BYTECODE: str(folder / "python"), "PYTHONDONTWRITEBYTECODE": ""}
    return env


def for_flight_recorder(logs: Path) -> dict[str, str]:
    """Return the settings of NCCL's record of its last collectives (`stacks.py` asks for it)."""
    stem = str(logs / FLIGHT)
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the newer and the older one
    env = {name: os.environ.get(name, str(FLIGHT_COLLECTIVES)) for name in names}
    return env | {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
    }


@dataclass(frozen=True)
class Rendezvous:
    """The store where the ranks of an attempt meet; it outlives them."""

    attempt: int
    ranks: int
    port: int
    address: str = LOOPBACK
    deterministic: bool = False

    def env(self, rank: int, local_rank: int | None = None) -> dict[str, str]:
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank if local_rank is None else local_rank),
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            # A prefix in the store: a restart must not read keys of the attempt before.
            "PENSTOCK_ATTEMPT": f"attempt-{self.attempt}",
            # Overrides a cluster's profile, which is meant for several hosts.
            **network(self.address),
        }
        if self.deterministic:
            env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS needs it to be deterministic
        return env
