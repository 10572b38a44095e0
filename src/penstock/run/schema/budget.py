"""`[budget]`: what a run may cost."""

from pydantic import Field

from penstock.run.schema.section import Positive, Section


class BudgetSection(Section):
    """Limits of cost and time. A plan over the limit is refused; a run saves and stops at it."""

    usd: Positive | None = Field(None, description="Most money, USD.")
    hours: Positive | None = Field(None, description="Most wall-clock time, hours.")
