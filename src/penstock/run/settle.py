"""A run whose model is on the hub, once its config is here: only then can all of it be checked."""

from pydantic import ValidationError

from penstock.catalog.open.folder import folder_of
from penstock.errors import PenstockError
from penstock.run.save import to_table
from penstock.run.schema.run import Run


def settled(run: Run) -> Run:
    """The run, held against the config of its model, which is fetched if it is not here."""
    given = run.model.from_
    if not given or run.model.base() is not None:
        return run
    folder_of(given)
    try:
        return Run.model_validate(to_table(run))
    except ValidationError as error:
        said = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors()]
        raise PenstockError(f'model.from = "{given}": {"; ".join(said)}') from None
