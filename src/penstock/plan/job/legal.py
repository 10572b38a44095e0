"""The rules for layouts that the trainer can do, checked before anything starts.

Every problem is one line that says what was asked for, why it cannot be and what to write. The
search asks for the same rules, so that a layout that was chosen is always one that can be trained.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

from penstock.catalog import accelerators
from penstock.catalog.shapes import ModelShape
from penstock.plan.job.layout import RESHARD, IllegalLayout, Layout
from penstock.run.schema import adapter
from penstock.run.schema.layout import LayoutSection
from penstock.run.schema.run import Run

MODEL_WAYS = ("tensor", "pipeline", "context", "expert")

SOME_VOCAB = 32_000  # of a model whose vocabulary only its dataset will tell


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def tensor_divisor(shape: ModelShape) -> int:
    """Return the number that every tensor-parallel number of ways divides: heads and matrices
    are cut evenly.
    """
    return 1 if shape.qk_norm_whole else gcd(*(width for _, width in _cut(shape)))


def _cut(shape: ModelShape) -> Iterator[tuple[str, int]]:
    """Yield what tensor parallel cuts, in the names of the run file."""
    yield "heads", shape.heads
    yield "kv_heads", shape.kv_heads
    yield "hidden", shape.hidden
    if not shape.moe or shape.dense_layers:
        yield "ffn", shape.ffn
    if shape.moe and shape.shared_experts:
        yield "expert_ffn", shape.shared_experts * shape.expert_ffn


def cuts_sequence(sequence: int, tensor: int, context: int) -> bool:
    """Tell whether every rank gets the same number of tokens of a sequence.

    Context parallel balances causal work by giving each rank two pieces; between the
    tensor-parallel parts each rank keeps its share of what the context left.
    """
    whole = context == 1 or sequence % (2 * context) == 0
    return whole and (sequence // context) % tensor == 0


def shape_problems(shape: ModelShape, lay: Layout, sequence: int) -> list[str]:
    """Say why the model cannot be split like this; empty when it can."""
    return [
        *_tensor(shape, lay, sequence),
        *_pipeline(shape, lay),
        *_context(lay, sequence),
        *_expert(shape, lay),
    ]


def _reshard(run: Run, lay: Layout) -> Iterator[str]:
    asked = run.layout.reshard if run.layout else None
    if asked in ("layer", "backward") and lay.pipeline > 1:
        yield (
            f'layout.reshard = "{asked}": a pipeline gathers weights and reduces gradients once a '
            'step; write "step", or leave it out'
        )


def _tensor(shape: ModelShape, lay: Layout, sequence: int) -> Iterator[str]:
    asked = f"layout.tensor = {lay.tensor}"
    if shape.qk_norm_whole and lay.tensor > 1:
        yield (
            f"{asked}: the model normalises queries and keys over all heads together, and each "
            "rank would have some of them; write 1 and use layout.shard, layout.pipeline or "
            "layout.context"
        )
        return
    fits = _one_of(divisors(gcd(tensor_divisor(shape), sequence // lay.context)))
    for name, width in _cut(shape):
        if width % lay.tensor:
            yield f"{asked}: does not divide the model's {name} of {width}; write {fits}"
            return
    if (sequence // lay.context) % lay.tensor:
        tokens = f"{sequence // lay.context} tokens of a sequence"
        yield f"{asked}: does not divide the {tokens} that a rank works on; write {fits}"


def _pipeline(shape: ModelShape, lay: Layout) -> Iterator[str]:
    if lay.pipeline > shape.layers:
        what = f"layout.pipeline = {lay.pipeline}: more than the model's {shape.layers} layers"
        yield f"{what}; write {shape.layers} or less"
    elif lay.pipeline == 1 and lay.interleave > 1:
        what = f"layout.interleave = {lay.interleave}: there is no pipeline whose stages could "
        yield f"{what}hold several pieces; write 1, or layout.pipeline = 2"
    elif lay.pipeline * lay.interleave > shape.layers:
        what = f"layout.interleave = {lay.interleave}: {lay.pipeline} stages of so many pieces"
        most = shape.layers // lay.pipeline
        yield f"{what} are more than the model's {shape.layers} layers; write {most} or less"


def _context(lay: Layout, sequence: int) -> Iterator[str]:
    if lay.context > 1 and sequence % (2 * lay.context):
        near = max(1, round(sequence / (2 * lay.context))) * 2 * lay.context
        yield (
            f"layout.context = {lay.context}: twice that does not divide the sequence of "
            f"{sequence}, and causal work is balanced by giving each rank two pieces; write "
            f"data.sequence = {near}, or fewer ways"
        )


def _expert(shape: ModelShape, lay: Layout) -> Iterator[str]:
    asked, ranks = f"layout.expert = {lay.expert}", lay.shard * lay.context * lay.tensor
    if lay.expert == 1:
        return
    if not shape.moe:
        yield f"{asked}: the model is dense and has no experts; write 1"
        return
    fits = _one_of(divisors(gcd(shape.experts, ranks)))
    if shape.experts % lay.expert:
        yield f"{asked}: does not divide the model's {shape.experts} experts; write {fits}"
    elif ranks % lay.expert:
        yield (
            f"{asked}: experts are spread inside a replica, and it does not divide the {ranks} "
            f"rank{'s' if ranks > 1 else ''} of shard × context × tensor; write {fits}, or more "
            "of these three"
        )


def _one_of(values: tuple[int, ...]) -> str:
    return " or ".join([", ".join(map(str, values[:-1])), str(values[-1])]) if values[1:] else "1"


def asked_layout(run: Run) -> Layout:
    """Return the layout of the file; everything that it leaves open is 1."""
    file = run.layout
    if file is None:
        return Layout()
    return Layout(
        replicate=file.replicate or 1,
        shard=file.shard or 1,
        microbatch=file.microbatch or 1,
        tensor=file.tensor,
        pipeline=file.pipeline,
        context=file.context,
        expert=file.expert,
        recompute=file.recompute or "none",
        interleave=file.interleave or 1,
        zero=zero_of(file),
    )


def zero_of(file: LayoutSection) -> int:
    """Return the ZeRO stage that the file asks for; 3 where it leaves it open."""
    return next((zero for zero, word in RESHARD.items() if word == file.reshard), 3)


def problems(run: Run, shape: ModelShape | None, lay: Layout, device: str = "") -> list[str]:
    """Return all problems of `lay` for `run`; `device` is what torch calls the accelerator.

    `shape` is None for the user's own module, "cpu" the name of a machine without accelerators.
    """
    if shape is None:
        return [
            *_own_module(run, lay),
            *_precision(run, device),
            *_live(run, lay),
            *_apart(run, lay),
        ]
    if shape.generic:
        of_model = run.model.adapter and adapter.misfits(run.model.adapter, shape)
        found = [*_generic(run, shape, lay), *(of_model or ()), *_live(run, lay), *_pairs(run)]
        return [*found, *_apart(run, lay)]
    found = [
        *shape_problems(shape, lay, run.sequence),
        *_reshard(run, lay),
        *_live(run, lay),
        *_pairs(run, lay),
        *_apart(run, lay),
    ]
    if run.model.adapter:
        found += [
            *adapter.misfits(run.model.adapter, shape),
            *_adapter(run, run.model.adapter, lay),
        ]
    if run.train.precision == "fp8" and lay.tensor > 1:
        found.append(
            f"layout.tensor = {lay.tensor}: parts of matrices are not multiplied in 8 bits "
            '(train.precision = "fp8"); write 1 and use layout.shard or layout.pipeline'
        )
    return [*found, *_own_loss(run, lay), *_precision(run, device)]


def whole_matrices(run: Run) -> bool:
    """Tell whether tensor parallel is refused whatever the model is."""
    section = run.model.adapter
    qlora = section is not None and section.kind == "qlora"
    return run.train.precision == "fp8" or run.train.loss is not None or qlora


def data_parallel_only(run: Run) -> bool:
    """Tell whether the model is replicated and sharded only: it runs through transformers, or its
    objective compares whole sequences.
    """
    return run.train.on_pairs or is_generic(run)


def is_generic(run: Run) -> bool:
    """Tell whether the model runs through transformers."""
    shape = run.model.base() if run.model.from_ else None
    return shape is not None and shape.generic


def _adapter(run: Run, section: adapter.AdapterSection, lay: Layout) -> Iterator[str]:
    if section.kind == "qlora" and lay.tensor > 1:
        yield (
            f'layout.tensor = {lay.tensor}: the 4-bit rows of model.adapter.kind = "qlora" cannot '
            'be cut; write 1 and use layout.shard or layout.pipeline, or write kind = "lora"'
        )
    if section.kind == "qlora" and run.train.precision == "fp8":
        yield (
            'train.precision = "fp8": the frozen matrices of model.adapter.kind = "qlora" are kept '
            'in 4 bits, and multiplied in 16; write "bf16", or kind = "lora"'
        )


def _live(run: Run, lay: Layout) -> Iterator[str]:
    if run.guard.mode == "live" and lay.replicate < 2:
        yield (
            'guard.mode = "live": replicas go on without a lost one, and this layout has one '
            'replica; write layout.replicate = 2 or more, or mode = "restart"'
        )


def _apart(run: Run, lay: Layout) -> Iterator[str]:
    """Yield a replica that takes local steps and shares nodes with others while it spans several:
    its own ranks would talk over the slow links in every step. The replicas of a site take every
    step together.
    """
    nodes, replica = run.cluster.nodes, lay.ranks // lay.replicate
    if not run.train.sync.apart or run.sites or nodes == 1 or lay.ranks % nodes:
        return
    each = lay.ranks // nodes
    if each % replica and replica % each:
        yield (
            f"train.sync.local_steps = {run.train.sync.local_steps}: {lay.replicate} replicas of "
            f"{replica} ranks on {nodes} nodes of {each}: some would be cut by the links between "
            "nodes, which they need in every step; write a layout.replicate that divides or is "
            f"divided by {nodes}"
        )
    elif lay.tensor > each:
        yield (
            f"layout.tensor = {lay.tensor}: more than the {each} ranks of a node, so every layer "
            f"would cross the links between nodes; write {each} or less"
        )


def _pairs(run: Run, lay: Layout | None = None) -> Iterator[str]:
    """Yield what an objective on pairs cannot have; `lay` where other ways are not refused."""
    if not run.train.on_pairs:
        return
    asked = f'train.objective = "{run.train.objective}"'
    for name in MODEL_WAYS if lay else ():
        if (ways := getattr(lay, name)) > 1:
            yield (
                f"layout.{name} = {ways}: {asked} compares whole sequences, and each rank would "
                "have a part of them or of the model; write 1 and use layout.replicate and "
                "layout.shard"
            )
    if run.guard.mode == "live":
        why = "a replica that joins would not have what the reference gives the pairs"
        if not run.train.has_reference:
            why = "replicas that join are not built"
        yield f'guard.mode = "live": with {asked} {why}; write mode = "restart"'


def _own_module(run: Run, lay: Layout) -> Iterator[str]:
    why = "only Penstock's own models know how they are"
    for name in MODEL_WAYS:
        if (ways := getattr(lay, name)) > 1:
            yield (
                f"layout.{name} = {ways}: model.module is your own code, and {why} split; write 1 "
                "and use layout.replicate and layout.shard"
            )
    if lay.recompute != "none":
        yield (
            f'layout.recompute = "{lay.recompute}": model.module is your own code, and {why} '
            'computed again; write "none" and call torch.utils.checkpoint inside your module'
        )
    if run.train.precision == "fp8":
        yield (
            'train.precision = "fp8": model.module is your own code, and its matrices are not '
            'replaced; write "bf16", or use 8-bit products inside your module'
        )
    if run.train.compile == "on":
        yield (
            f'train.compile = "on": model.module is your own code, and {why} cut into layers; '
            'write "auto" and call torch.compile inside your module'
        )


def _generic(run: Run, shape: ModelShape, lay: Layout) -> Iterator[str]:
    """Yield what needs a model that Penstock builds itself."""
    through = f'"{shape.architecture}" runs through its module in transformers'
    for name in MODEL_WAYS:
        if (ways := getattr(lay, name)) > 1:
            yield (
                f"layout.{name} = {ways}: {through}, and only models that Penstock builds itself "
                "(`penstock catalog models`) are split so; write 1 and use layout.replicate and "
                "layout.shard"
            )
    if lay.interleave > 1:
        yield f"layout.interleave = {lay.interleave}: {through}, without a pipeline; write 1"
    if run.train.precision == "fp8":
        yield (
            f'train.precision = "fp8": {through}, and its matrices are not replaced; write "bf16"'
        )


def _own_loss(run: Run, lay: Layout) -> Iterator[str]:
    if run.train.loss and lay.tensor > 1:
        yield (
            f"layout.tensor = {lay.tensor}: train.loss is your own code, which needs the logits of "
            "all words, and tensor-parallel ranks have some each; write 1 and use layout.shard"
        )


def _precision(run: Run, device: str) -> Iterator[str]:
    if run.train.precision != "fp8" or not device:
        return
    chip = None if device == "cpu" else accelerators.for_device(device)
    if device == "cpu" or (chip is not None and chip.fp8_tflops is None):
        name = "a CPU" if device == "cpu" else device
        yield f'train.precision = "fp8": {name} has no 8-bit matrix products; write "bf16"'


def refuse(run: Run, shape: ModelShape | None, lay: Layout, device: str = "") -> None:
    """Raise one error with all problems, before any process starts."""
    if found := problems(run, shape, lay, device):
        raise IllegalLayout("\n".join(found))


def layout_warnings(run: Run, lay: Layout) -> list[str]:
    """Return warnings about layouts that work and waste time."""
    share = -(-run.batch_samples // (lay.replicate * lay.shard))
    rounds = -(-share // lay.microbatch)
    if lay.pipeline > 1 and rounds < lay.pipeline:
        few = f"{rounds} microbatch{'es' if rounds > 1 else ''}"
        fix = "a larger train.batch_tokens"
        if lay.microbatch > 1:
            fix = f"layout.microbatch = {max(1, share // lay.pipeline)}, or {fix}"
        return [
            f"layout.pipeline = {lay.pipeline}: a step has {few} of each replica, so most stages "
            f"wait most of the time; write {fix}"
        ]
    return []
