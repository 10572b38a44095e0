"""The loop. What it uses is built in `train/job.py`; every hard part has a file of its own."""

from penstock.data.read.feed import Feed
from penstock.meter.clock import StepClock
from penstock.train.job import Job
from penstock.train.optim.optimizer import learning_rate
from penstock.train.parallel.batch import Loaded
from penstock.train.replicas.rewind import Again


def fit(job: Job) -> str:
    """Train from the newest good checkpoint to the end: "done", or "stopped" before it."""
    at = job.begin()
    feed = job.feed(after_step=at.step)
    job.warm_up(after_step=at.step)
    job.pulse.at("ready", at.step)
    job.journal.event("ready", step=at.step)
    clock = StepClock(job.world.cuda)

    while not at.over:
        try:
            if at.due is None:
                with job.tracer.around(at.step + 1, clock):
                    _step(job, feed, clock, at.step + 1)
                job.feeding.tell(feed)
            job.after()
        except Again as again:  # a peer was lost or came, or the guard took steps back
            job.go_back(again)
            feed.close()
            feed = job.feed(after_step=at.step)

    feed.close()
    job.tracer.close()
    job.keeper.settle()
    if at.step == job.steps:
        job.write_sample()
    return job.result


def _step(job: Job, feed: Feed[Loaded], clock: StepClock, step: int) -> None:
    clock.begin()
    job.reseed(step)
    with clock.part("fetch"):
        job.pulse.at("fetch", step)
        samples = feed.next()
        batch = job.micros(samples)
    with clock.part("exchange"):
        tokens = job.counted(samples)
    rate = learning_rate(step - 1, job.steps, job.peak_rate, job.run.train)
    vote = job.stepper.step(
        batch, tokens, rate, job.wishes(step), clock, lambda vote: job.accept(step, vote, samples)
    )
    job.passed(step, vote, rate)
    job.look(clock)
    job.journal.step(step, **clock.settle())
