"""`[budget]`: what a run may cost."""

from pydantic import Field

from penstock.run.schema.section import Positive, Section


class BudgetSection(Section):
    """What a run may cost. The plan refuses beforehand; the run saves and stops at the limit."""

    usd: Positive | None = Field(None, description="Most money, USD.")
    hours: Positive | None = Field(None, description="Most wall-clock time, hours.")
