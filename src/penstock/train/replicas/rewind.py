"""How the loop goes back: a step that was lost with a peer, or that the guard took back."""


class Again(Exception):
    """Go on after `step`: the samples that follow it are read again."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"goes on after step {step}: {why}")
        self.step, self.why = step, why
