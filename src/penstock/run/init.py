"""Writes a first run file."""

from importlib.resources import files
from pathlib import Path

from penstock.errors import NotYet, PenstockError, nearest

KINDS = ("pretrain", "finetune")


def template(kind: str) -> str:
    """The text of the run file for a kind of work."""
    if kind not in KINDS:
        guess = nearest(kind, KINDS)
        raise PenstockError(
            f"init {kind}: no such kind; write pretrain or finetune. {guess}".rstrip()
        )
    if kind == "finetune":
        raise NotYet(
            "init finetune: fine-tuning is not built yet; "
            "`penstock init pretrain` writes a run that works"
        )
    return (files("penstock.run") / "templates" / f"{kind}.toml").read_text(encoding="utf-8")


def write(kind: str, out: Path, force: bool = False) -> None:
    """Writes the run file; a file that is there is kept unless `force`."""
    text = template(kind)
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PenstockError(
            f"{out}: there is such a file; add --force or --out OTHER.toml"
        ) from None
    except OSError as error:
        raise PenstockError(
            f"{out}: cannot be written: {error.strerror}; choose another --out"
        ) from None
