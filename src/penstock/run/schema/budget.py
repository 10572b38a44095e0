"""`[budget]`: what a run may cost, and in which hours it runs."""

from typing import Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from penstock.run.schema.section import InvalidFields, Positive, Seconds, Section, Text


class BudgetSection(Section):
    """Limits of cost and time. A plan over the limit is refused; a run saves and stops at it."""

    usd: Positive | None = Field(None, description="Most money, USD.")
    hours: Positive | None = Field(None, description="Most wall-clock time, hours.")
    hours_csv: Text | None = Field(
        None,
        description="CSV of hours with their price, carbon and power: the run pauses in the "
        "dear ones, and trains on some of its accelerators in those without power for all. Needs "
        "`finish_within`.",
    )
    finish_within: Seconds | None = Field(
        None,
        description="With `hours_csv`: how long after its first start the run may end, pauses "
        "included.",
    )
    hours_by: Literal["cost", "carbon", "market_carbon"] | None = Field(
        None,
        description="What hours are chosen by. Left out: cost where `hours_csv` has a price, else "
        "its carbon.",
    )
    hours_paused: Literal["idle", "off"] = Field(
        "idle",
        description="What machines draw in a pause: they stay on, or they are switched off or do "
        "something else, and nothing of them counts.",
    )
    hours_zone: Text = Field(
        "UTC", description='Time zone of `hours_csv` where it gives none, as "Europe/Berlin".'
    )

    @model_validator(mode="after")
    def _hours_agree(self) -> Self:
        problems = []
        if self.hours_csv and self.finish_within is None:
            what = 'needs to know how late the run may end; write budget.finish_within = "14 days"'
            problems.append(("hours_csv", what))
        for name in ("finish_within", "hours_by"):
            if getattr(self, name) is not None and not self.hours_csv:
                hint = "; a limit of time alone is budget.hours" if name == "finish_within" else ""
                problems.append((name, f"is about the hours of budget.hours_csv{hint}"))
        try:
            ZoneInfo(self.hours_zone)
        except (ValueError, OSError, KeyError):  # what is no zone is any of these
            problems.append(("hours_zone", _NO_ZONE))
        if problems:
            raise InvalidFields(*problems)
        return self


_NO_ZONE = 'no time zone of that name is known here; write one such as "Europe/Berlin" or "UTC"'
