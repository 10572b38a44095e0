"""The loop. What it uses is built in `train/job.py`; every hard part has a file of its own."""

from penstock.meter.clock import StepClock
from penstock.train.job import Job
from penstock.train.optimizer import learning_rate


def fit(job: Job) -> str:
    """Train from the newest good checkpoint to the end: "done", or "stopped" when asked to."""
    done = job.keeper.resume()
    feed = job.feed(after_step=done)
    job.warm_up(after_step=done)
    job.journal.event("ready", step=done)
    if done == 0 and job.stream.held_out and job.run.evaluate.every != "never":
        job.evaluate(step=0)
    clock = StepClock(job.world.cuda)

    for step in range(done + 1, job.steps + 1):
        clock.begin()
        job.reseed(step)
        with clock.part("fetch"):
            samples = feed.next()
            batch = job.micros(samples)
        with clock.part("exchange"):
            tokens = job.counted(samples)
        rate = learning_rate(step - 1, job.steps, job.peak_rate, job.run.train)
        vote = job.stepper.step(batch, tokens, rate, job.wishes(step), clock)
        job.keeper.refuse_bad(step, vote)
        job.record(step, vote, rate, clock.settle())
        if vote.wishes["evaluate"]:
            job.evaluate(step)
        if vote.wishes["save"] or vote.wishes["stop"] or step == job.steps:
            job.keeper.save(step)
        if vote.wishes["stop"] and step < job.steps:
            feed.close()
            return "stopped"

    feed.close()
    job.write_sample()
    return "done"
