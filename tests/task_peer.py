"""The other side of an evaluation: the harness with its own model for transformers."""

from pathlib import Path
from typing import Any

from penstock.train.tasks.load import SEED, load_tasks, same_random_numbers

TASKS = ("sums_choice", "sums_write", "sums_text")
SMALL = Path(__file__).parent / "train" / "tasks" / "small"


def loaded() -> dict[str, Any]:
    return load_tasks(TASKS, str(SMALL))


def theirs(folder: Path, tasks: dict[str, Any], batch: int = 4, chat: bool = False) -> Any:
    """The results of the harness's `hf` model in fp32, with every request."""
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    from penstock.train.tasks.evaluate import no_bars

    for task in tasks["tasks"].values():
        task.set_fewshot_seed(seed=SEED)
        task._instances = None
    with no_bars(), same_random_numbers():
        model = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=batch)
        return evaluator.evaluate(
            lm=model,
            task_dict=tasks,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
        )


def assert_equal(ours: Any, reference: Any) -> int:
    """Compare an `Evaluated` with the harness's results; return how many requests there were."""
    count = 0
    for score in ours.results.scores:
        value = reference["results"][score.task][f"{score.metric},{score.filter}"]
        if "perplexity" in score.metric or "bits" in score.metric:
            assert abs(score.value - value) <= 1e-6 * abs(value), score.name
        else:
            assert score.value == value, score.name
    assert set(ours.samples) == set(reference["samples"]) == set(TASKS)
    for task, rows in ours.samples.items():
        for own, other in zip(rows, reference["samples"][task], strict=True):
            assert own["arguments"] == other["arguments"]
            for (mine,), (its,) in zip(own["resps"], other["resps"], strict=True):
                count += 1
                if isinstance(mine, str):
                    assert mine == its
                elif isinstance(mine, tuple):
                    assert abs(mine[0] - its[0]) < 1e-4
                    assert mine[1] == its[1]
                else:  # a sum over a whole text, which the harness adds up in fp32
                    assert abs(mine - its) < 1e-4 + 1e-6 * abs(its)
    return count
