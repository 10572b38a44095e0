"""The properties of our own trainer that show in time or memory: for a run, a device and a layout.

The numbers of bytes are counted from `train/`: where weights are not sharded, parameters are 16
bits wide and the optimizer holds them in full precision; where they are, FSDP2 holds the full
precision and gathers 16 bits. `MEASURED` is what was measured on it, and the only place for such
figures: the constants fitted to published runs are of other programs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.plan.job.codecs import codec_size
from penstock.plan.job.job import Adapter, Software, UnshardedBytes
from penstock.plan.job.layout import Layout
from penstock.run.schema.adapter import ATTENTION, FFN
from penstock.run.schema.run import Run
from penstock.run.schema.train import OF_GRADIENTS

# Constants of the time model that replace the fitted ones, by name in `plan/job/constants.py`: from
# profiles of compiled layers on one H200 (bf16, 1.5B and 8B parameters, sequences of 4096). The
# steps they are held to are in benchmarks/facts/steps_own.csv.
MEASURED: Mapping[str, float] = {
    "watt_16": 0.94,
    "attention": 0.47,  # cuDNN's: 0.42 with heads of 64, 0.52 with heads of 128
    "passes_fused": 5.2,
    "matmul_fp8": 0.95,
    "cast_passes": 6.5,  # one scale per tensor: a pass for it, one to narrow, transposed copies
}
# `model/loss.py`: logits of a chunk, in 16 bits, which become their gradients in place.
CHUNK_LOGITS = float(2**29)

_CHUNKED = Software(
    name="penstock",
    overlap_data=False,
    chunked_loss=True,
    chunk_logits=CHUNK_LOGITS,
    sums_aside=True,
    fsdp=True,
    keeps_gathered=True,
    gathers_context=True,
)
# One operation at a time, on a CPU; the loss makes 32-bit copies of a chunk there.
ON_CPU = replace(_CHUNKED, logit_bytes=8.0)
# On a GPU attention is cuDNN's or Flash's, and the loss and the update are kernels of our own.
_ON_GPU = replace(
    _CHUNKED,
    attention="chip",
    logit_bytes=2.0,
    loss_bytes=4.0,
    measured=tuple(sorted(MEASURED.items())),
)
COMPILED = replace(_ON_GPU, fused=True, lean=True)


def program_by_layout(run: Run, kind: str, moe: bool) -> Callable[[Layout], Software]:
    """Return the trainer's properties by layout; cached, since a search asks ten thousand times."""
    split, apart = (training_program(run, kind, moe, alone) for alone in (False, True))
    return lambda layout: apart if layout.tensor == layout.context == 1 else split


def training_program(run: Run, kind: str, moe: bool, alone: bool) -> Software:
    """Return the trainer's properties with the number formats and the optimizer of the file.

    `alone`: no layer waits for other ranks in its middle, as tensor and context parallel ones do.
    """
    train = run.train
    moment = {"fp32": 4.0, "bf16": 2.0}[train.states]
    narrow = train.precision in ("bf16", "fp8")
    wide = {"fp64": 8.0}.get(train.precision, 4.0)
    kept = wide if not (narrow and train.weights == "bf16") else 2.0
    changed = replace(
        _program(run, kind, moe, alone),
        weight_bytes=kept,
        grad_bytes=wide,
        optimizer_bytes=2 * moment,
        matrix_saving_bytes=moment if train.optimizer == "muon" else 0.0,
        reduce_bytes=wide,
        replica_bytes=_replica_bytes(train.sync.compress, wide),
        # Weights and moments are read and written, gradients read for the norm and the update.
        update_bytes=0.0 if kind == "cpu" else 2 * (kept + 2 * moment + wide),
    )
    if not narrow or run.model.module:
        return changed
    # Not sharded: 16-bit parameters, the full precision beside the moments.
    master = kept if kept > 2.0 else 0.0
    return replace(changed, whole=UnshardedBytes(weights=2.0, once=2.0, summed=4.0, master=master))


def _replica_bytes(compress: str, wide: float) -> float:
    """Return the bytes of a gradient that replicas send each other, where they do in every step."""
    return wide if compress not in OF_GRADIENTS else codec_size(compress, int(wide)).value_bytes


def _program(run: Run, kind: str, moe: bool, alone: bool) -> Software:
    """Return the program before the file's choices. On a GPU layers are compiled; of layers with
    experts only the attention is, which is too little to count.
    """
    if kind == "cpu":
        return ON_CPU
    if moe:
        return _ON_GPU
    compiled = alone if run.train.compile == "auto" else run.train.compile == "on"
    return COMPILED if compiled else _ON_GPU


def adapter(run: Run) -> Adapter | None:
    section = run.model.adapter
    if section is None:
        return None
    wide = {"fp32": 32, "fp64": 64}.get(run.train.precision, 16)
    # Names of modules that only a generic model has: all matrices, as an estimate.
    parts = section.parts or (*ATTENTION, *FFN)
    return Adapter(section.rank, 4 if section.kind == "qlora" else wide, parts)
