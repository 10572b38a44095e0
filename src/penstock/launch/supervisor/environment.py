"""What the processes of ranks find in their environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.home import home
from penstock.launch.supervisor.addresses import network
from penstock.meter import clock
from penstock.meter.rendezvous import LOOPBACK

FLIGHT = "flight-"  # `flight-0`, and `flight-0.pipe` to ask rank 0 for it
FLIGHT_COLLECTIVES = 2000  # that are kept


def for_nursery(threads: int) -> dict[str, str]:
    """What C libraries read when they are loaded: the same for all ranks of a host."""
    env = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait starve their neighbours on a shared machine.
        "OMP_WAIT_POLICY": "passive",
        # Otherwise glibc gives large tensors back to the kernel and faults them in again: up to
        # a tenth of a step on a CPU.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "PYTHONUNBUFFERED": "1",
        clock.ENVIRONMENT: repr(clock.OFFSET_S),
        # To ask for GPUs in the usual way opens the driver, which does not survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    # Compiled kernels outlive the attempt: a restart finds them instead of making them again.
    for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "torch"), ("TRITON_CACHE_DIR", "triton")):
        env[name] = os.environ.get(name) or str(home() / "compiled" / folder)
    return env


def for_flight_recorder(logs: Path) -> dict[str, str]:
    """NCCL's record of its last collectives, which `stacks.py` asks for by a pipe."""
    stem = str(logs / FLIGHT)
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the newer and the older one
    env = {name: os.environ.get(name, str(FLIGHT_COLLECTIVES)) for name in names}
    return env | {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
    }


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of an attempt meet. The `store` at this address outlives them."""

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
            # A restart must not meet the ghost of the attempt before.
            "PENSTOCK_ATTEMPT": f"attempt-{self.attempt}",
            # Whatever a cluster's profile says, which is meant for several hosts.
            **network(self.address),
        }
        if self.deterministic:
            env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what cuBLAS needs to repeat itself
        return env
