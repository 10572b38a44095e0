"""The shape of an open model that is not on this machine, from the catalog."""

from penstock.catalog import models
from penstock.catalog.models import ModelPreset
from penstock.run.load import with_model_config
from penstock.run.schema.run import Run


def known_shape(run: Run) -> tuple[Run, tuple[str, ...]]:
    """Return the run with a shape to plan with, and notes on where that comes from.

    A `model.from` that is here is read. One that is not is looked up in the catalog, without asking
    the network; only where that does not know it, its config is fetched.
    """
    given = run.model.from_
    found = _preset_of(given) if given and run.model.base() is None else None
    if found is None:
        return with_model_config(run), ()
    model = run.model.model_copy(update={"from_": None, "preset": found.name})
    note = (
        f'model.from = "{given}" is not here: planned with the shape of {found.name} in the '
        "catalog; the weights were not looked at"
    )
    return run.model_copy(update={"model": model}), (note,)


def _preset_of(given: str) -> ModelPreset | None:
    """Find the preset of a hub name, or of a folder that is named like the model."""
    name = given.removeprefix("hf:").partition("@")[0].rstrip("/")
    for asked in (name, name.rpartition("/")[2]):
        exact = [
            preset
            for preset in models.all()
            for key in preset.known_as()
            if asked.casefold() in (key.casefold(), key.rpartition("/")[2].casefold())
        ]
        if exact:
            return exact[0]
    return None
