"""The power of a server that trains on its CPUs: a share of one, by hardware threads.

The plan and the report use it where neither a meter nor a TDP is known.
"""

from collections.abc import Mapping

from penstock.ledger.causes import Cause
from penstock.plan.job.outcome import Band

# Watts of a cloud server for one hardware thread at rest and at work: AWS's fleet by SPECpower
# (Cloud Carbon Footprint, methodology; 0.71 and 4.26 for Google's, 0.78 and 3.76 for Azure's).
THREAD_REST_W, THREAD_BUSY_W = 0.74, 3.5
THREADS = "AWS's servers, Cloud Carbon Footprint"
SERVER_BAND = Band(0.5, 2.0)
# A rank on a CPU sleeps while it waits; everything else keeps its cores busy.
CPU_WAITS = (Cause.BUBBLE, Cause.PEER_WAIT, Cause.DATA_WAIT, Cause.DOWN)


def server_w(threads: float) -> Mapping[Cause, float]:
    """Return the watts of a share of a server with so many hardware threads, by cause."""
    return {
        cause: threads * (THREAD_REST_W if cause in CPU_WAITS else THREAD_BUSY_W) for cause in Cause
    }


def server_words(threads: float) -> str:
    """Say what the watts of so many hardware threads stand on."""
    return (
        f"{threads:g} hardware threads of {THREAD_REST_W:g} W at rest and {THREAD_BUSY_W:g} W at "
        f"work, their share of a server ({THREADS}; estimated, within a factor of two)"
    )
