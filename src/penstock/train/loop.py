"""The loop. What it uses is built in `train/job.py`; every hard part has a file of its own."""

from penstock.data.feed import Feed
from penstock.meter.clock import StepClock
from penstock.train.again import Again
from penstock.train.batch import Loaded
from penstock.train.job import Job
from penstock.train.optimizer import learning_rate
from penstock.train.replicas import Vote


def fit(job: Job) -> str:
    """Train from the newest good checkpoint to the end: "done", or "stopped" when asked to."""
    done = job.keeper.resume()
    feed = job.feed(after_step=done)
    job.warm_up(after_step=done)
    job.journal.event("ready", step=done)
    job.pulse.at("ready", done)
    if done == 0 and job.stream.held_out and job.run.evaluate.every != "never":
        job.evaluate(step=0)
    clock = StepClock(job.world.cuda)

    stopped = False
    while done < job.steps and not stopped:
        try:
            vote = _step(job, feed, clock, done + 1)
            done += 1
            stopped = job.after(done, vote)
        except Again as again:  # a peer was lost, or the guard took steps back
            done = again.step
            job.went_back(again)
            feed.close()
            feed = job.feed(after_step=done)

    feed.close()
    job.keeper.settle()
    if done == job.steps:
        job.write_sample()
    return "done" if done == job.steps else "stopped"


def _step(job: Job, feed: Feed[Loaded], clock: StepClock, step: int) -> Vote:
    clock.begin()
    job.reseed(step)
    job.pulse.at("fetch", step)
    with clock.part("fetch"):
        samples = feed.next()
        batch = job.micros(samples)
    with clock.part("exchange"):
        tokens = job.counted(samples)
    rate = learning_rate(step - 1, job.steps, job.peak_rate, job.run.train)
    vote = job.stepper.step(
        batch, tokens, rate, job.wishes(step), clock, lambda vote: job.accept(step, vote, samples)
    )
    job.record(step, vote, rate, clock.settle())
    return vote
