"""The signal to go back to an earlier step: one was lost with a peer, or the guard took it back."""


class Rewind(Exception):
    """A request to continue after `step`: the samples that follow it are read again."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"goes on after step {step}: {why}")
        self.step, self.why = step, why
