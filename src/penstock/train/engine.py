"""The engine of a rank: a model laid out over ranks, how it runs, and what updates it."""

from dataclasses import dataclass
from functools import partial

from torch import nn

from penstock.guard.detect.pulse import Pulse
from penstock.model.decoder import Decoder
from penstock.model.loss import summed_cross_entropy
from penstock.model.open.module import TransformersModel
from penstock.model.user_loss import TokenLoss, checked_loss, loss_rule
from penstock.model.user_module import import_user_function
from penstock.plan.job.layout import Layout
from penstock.run.schema.code import loss_code, module_code
from penstock.run.schema.run import Run
from penstock.train.codecs.codec import build_codec
from penstock.train.optim.nesterov import Nesterov
from penstock.train.optim.optimizer import Optimizer, build_optimizer
from penstock.train.parallel.context import sequence_joiner, sequence_slicer
from penstock.train.parallel.expert import build_balancer
from penstock.train.parallel.materialize import materialize
from penstock.train.parallel.microbatch import RankShare
from penstock.train.parallel.pairs import PairRunner
from penstock.train.parallel.parts import Gradients, ModelParts, holder_count, local_tensor
from penstock.train.parallel.precision import COMPUTE, MASTER
from penstock.train.parallel.reshard import step_resharding
from penstock.train.parallel.runner import PlainRunner, Runner
from penstock.train.replicas.outer import OuterStep
from penstock.train.replicas.reduce import LiveReplicaReducer, ReplicaReducer
from penstock.train.replicas.transport import GroupTransport, NoTransport
from penstock.train.step import Stepper
from penstock.train.world.world import World


@dataclass(frozen=True)
class Engine:
    """Model, optimizer and replicas of one rank."""

    parts: ModelParts
    runner: Runner
    optimizer: Optimizer
    replicas: ReplicaReducer
    stepper: Stepper
    outer: OuterStep | None = None  # of replicas that take local steps


def build_engine(
    run: Run, layout: Layout, vocab: int, world: World, pulse: Pulse | None = None
) -> Engine:
    """Build the model of a rank, laid out over the ranks of its replica, and what trains it."""
    made = materialize(run, layout, vocab, world)
    parts, trained = made.parts, made.parts.trained()
    update = build_optimizer(trained, made.masters, run.train)
    policy = LiveReplicaReducer if run.guard.mode == "live" else ReplicaReducer
    # Sites compress what they publish, not the gradients of their ranks.
    replicas = policy(world, "none" if run.sites else run.train.sync.compress)
    runner = _runner(parts, run, layout, world, put_user_loss(run, parts))
    samples = -(-run.batch_samples // (run.sites.count if run.sites else 1))
    micros = RankShare.of(0, samples, 0, world.data_ranks, layout.microbatch).micros
    # One backward pass in 16 bits is as exact as its matmuls; sums of several are not.
    gradients = Gradients(trained, wide=micros > 1 or not replicas.alone)
    shares = {
        n: 0.0 if n in parts.copies else 1 / holder_count(p, world) for n, p in trained.items()
    }
    balance = build_balancer(parts.modules, world, run.balance_rate)
    stepper = Stepper(
        runner,
        gradients,
        update,
        replicas,
        run.train.clip,
        shares,
        balance,
        buffers=parts.buffers,
        pulse=pulse,
    )
    outer = _outer_step(trained, update, run, world) if world.apart or run.sites else None
    return Engine(parts, runner, update, replicas, stepper, outer)


def _outer_step(
    trained: dict[str, nn.Parameter], optimizer: Optimizer, run: Run, world: World
) -> OuterStep:
    weights = {
        name: local_tensor(optimizer.moments[name].get("master", param.detach()))
        for name, param in trained.items()
    }
    sync, wide = run.train.sync, MASTER[run.train.precision]
    nesterov = Nesterov(sync.outer_rate, sync.outer_momentum)
    codec = build_codec(sync.compress, wide)
    transport = NoTransport() if run.sites else GroupTransport(world)
    return OuterStep(weights, codec, nesterov, transport, sync.stream)


def put_user_loss(run: Run, parts: ModelParts) -> TokenLoss | None:
    """Load the loss that the run file names and put it into every model of this rank that is not
    the user's own."""
    code = loss_code(run.train.loss)
    if code is None:
        return None
    loss = checked_loss(import_user_function(code), code)
    for module in parts.modules:
        chunked = partial(summed_cross_entropy, rule=loss_rule(loss))
        if isinstance(module, Decoder):
            module.loss = chunked
        elif isinstance(module, TransformersModel):
            module.chunked_loss, module.token_loss = chunked, loss
    return loss


def _runner(
    parts: ModelParts, run: Run, layout: Layout, world: World, loss: TokenLoss | None
) -> Runner:
    slicer, joiner = (
        (sequence_slicer(world), sequence_joiner(world)) if layout.context > 1 else (None, None)
    )
    kept = step_resharding(parts, layout, world)
    if run.train.on_pairs:
        adapted = run.model.adapter is not None
        return PairRunner(parts, resharding=kept, train=run.train, adapted=adapted)
    if layout.pipeline == 1:
        code = module_code(run.model.module)
        return PlainRunner(parts, layout.tensor, slicer, joiner, loss, code, kept)
    # Not at the top: torch's schedules take a second to import.
    from penstock.train.parallel.pipeline import PipelineRunner

    dtype = COMPUTE[run.train.precision]
    return PipelineRunner(parts, layout, world, dtype, layout.tensor, slicer, joiner)
