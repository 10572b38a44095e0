"""Events for the user's function, read from a journal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.watch.outlets.callbacks import Evaluation, EventReader, StepRewards
from tracked_launches import launched, logged_folder


@pytest.mark.parametrize("pairs", [False, True])
def test_rewards_of_pairs_are_events(run_file: Callable[..., Path], pairs: bool) -> None:
    """Of a step as often as steps are; of held-out pairs with their loss."""
    folder = logged_folder(run_file)
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, -0.5, 1.0)}
    launched(
        folder,
        0,
        {1: 5.0, 2: 4.0, 3: 3.5},
        "done",
        validation={2: 4.5},
        rewards=rewards if pairs else None,
    )
    reader = EventReader(folder)
    events = reader.read()
    assert reader.read() == []
    steps = [event for event in events if isinstance(event, StepRewards)]
    (evaluated,) = [event for event in events if isinstance(event, Evaluation)]
    assert (evaluated.step, evaluated.loss) == (2, 4.5)
    if not pairs:
        assert (steps, evaluated.rewards) == ([], None)
        return
    (last,) = steps
    assert (last.kind, last.step) == ("rewards", 3)
    assert (last.rewards.chosen, last.rewards.margin, last.rewards.accuracy) == (0.5, 1.0, 1.0)
    assert evaluated.rewards is not None
    assert (evaluated.rewards.rejected, evaluated.rewards.margin) == (0.25, 0.25)
