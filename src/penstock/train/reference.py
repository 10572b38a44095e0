"""Log-probabilities of all pairs by the model that a run began with: the reference of dpo and ipo.

They are computed once, by all ranks, before the first step. A copy stays in the run's folder: a
restart reads it and never computes again, on whatever layout. Another is in Penstock's home under
everything that decides the numbers, so that a second run on the same data begins at once.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from penstock.files import write_whole
from penstock.guard.detect.fingerprints import weights_hash
from penstock.home import home
from penstock.ledger.journal.events import ReferenceReady
from penstock.meter.clock import now
from penstock.train.batches import Batches
from penstock.train.engine import Engine
from penstock.train.parallel.microbatch import RankShare
from penstock.train.parallel.pairs import PairRunner
from penstock.train.rank_context import RankContext
from penstock.train.state import weight_tensors
from penstock.untrusted import hash_json

REVISION = 1  # raised when changed code gives other numbers for the same input
CHUNK = 64  # microbatches that are read at once
_STORED = np.dtype("<f8")


def load_or_compute_reference(rank: RankContext, engine: Engine, batches: Batches) -> np.ndarray:
    """Return the log-probabilities [pairs, 2], by the pairs' numbers; the same on every rank.

    All ranks must call it, before weights are loaded from a checkpoint: the weights in memory are
    those that the run began with.
    """
    began, world, pairs = now(), rank.world, batches.stream.stored_samples
    own = rank.folder.reference
    table = read_table(own, pairs) if world.lead else None
    origin, kept = "run", None
    if not _anyone_has(table, rank):
        kept = home() / "reference" / f"{reference_key(rank, engine, batches)}.bin"
        table = read_table(kept, pairs) if world.lead else None
        origin = "cache"
    if _anyone_has(table, rank):
        shared = torch.zeros((pairs, 2), dtype=torch.float64, device=world.device)
        if table is not None:
            shared += torch.from_numpy(table).to(world.device)
        values = world.sum_(shared).cpu().numpy()
    else:
        values, origin = _compute(rank, engine, batches), "computed"
    if world.lead:
        _write(values, origin, own, kept)
        rank.journal.write(ReferenceReady(pairs=pairs, origin=origin, seconds=now() - began))
    return values


def reference_key(rank: RankContext, engine: Engine, batches: Batches) -> str:
    """Return a hash of all that decides the numbers: weights, data and precision."""
    weights = weight_tensors(engine.parts, engine.optimizer)
    about: dict[str, Any] = {
        "revision": REVISION,
        "weights": weights_hash(weights, rank.world, hashing=rank.world.first_copy),
        "datasets": [part.dataset.id for part in batches.stream.parts],
        "sequence": batches.stream.row_tokens,
        "precision": rank.run.train.precision,
    }
    return hash_json(about)[:32]


def read_table(path: Path, pairs: int) -> np.ndarray | None:
    """Read a table that `write_table` wrote; None if there is none, or not a whole one."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        digest = json.loads(head)["blake3"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if blake3(body).hexdigest() != digest or len(body) != pairs * 2 * _STORED.itemsize:
        return None
    return np.frombuffer(body, _STORED).reshape(pairs, 2).astype(np.float64)


def write_table(path: Path, values: np.ndarray) -> None:
    """Write a line of JSON with the hash of the values, then the values."""
    body = values.astype(_STORED).tobytes()
    head = json.dumps({"pairs": len(values), "blake3": blake3(body).hexdigest()})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, head.encode() + b"\n" + body)


def _write(values: np.ndarray, origin: str, own: Path, kept: Path | None) -> None:
    if origin == "run":
        return
    write_table(own, values)
    if origin == "computed" and kept:
        try:
            write_table(kept, values)
        except OSError:  # another run would compute it again, which is no reason to fail this one
            return


def _anyone_has(table: np.ndarray | None, rank: RankContext) -> bool:
    return bool(rank.world.sum_(torch.tensor([int(table is not None)])).item())


def _compute(rank: RankContext, engine: Engine, batches: Batches) -> np.ndarray:
    """Let every rank compute its share of the pairs, and add the shares up."""
    runner, world, pairs = engine.runner, rank.world, batches.stream.stored_samples
    assert isinstance(runner, PairRunner)
    microbatch = rank.layout.microbatch
    values = torch.zeros((pairs, 2), dtype=torch.float64, device=world.device)
    each = CHUNK * microbatch * world.data_ranks
    for first in range(0, pairs, each):
        stop = min(first + each, pairs)
        share = RankShare.of(first, stop, world.data_rank, world.data_ranks, microbatch)
        samples = batches.loader.load(batches.stream.read_stored(share.start, share.stop))
        found = []
        for micro in samples.micros(share.micros, microbatch):  # fillers too: collectives must meet
            found.append(runner.log_probs([micro]))
            rank.pulse.beat()
        values[share.start : share.stop] = torch.cat(found)[: len(samples)].double()
    return world.sum_(values).cpu().numpy()
