"""`[sites]`: sites that meet only in a bucket. Each is a run of its own, with its own machines."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from penstock.run.schema.section import (
    FolderOrUrl,
    InvalidFields,
    PositiveCount,
    Seconds,
    Section,
    Text,
    text,
    whole_number,
)

if TYPE_CHECKING:
    from penstock.run.schema.run import Run

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
MOST = 1000
SECRET_VARIABLE = "PENSTOCK_SITES_SECRET"
LOCAL = "train.sync.local_steps"


def _site_name(value: object) -> str:
    name = text(value)
    if not re.fullmatch(NAME, name, re.ASCII):
        raise ValueError(
            "not a name of a site; write up to 32 letters, digits, '-' and '_', such as \"berlin\""
        )
    return name


SiteName = Annotated[
    str,
    PlainValidator(_site_name),
    WithJsonSchema({"title": "name", "type": "string", "pattern": f"^{NAME}$"}),
]
SiteCount = Annotated[
    int,
    PlainValidator(whole_number(2, "sites", "2", most=MOST)),
    WithJsonSchema({"title": "count of 2 or more", "type": "integer", "minimum": 2}),
]


class SitesSection(Section):
    """Sites that meet only in a bucket; `penstock train` in each of them is a run of its own."""

    bucket: FolderOrUrl = Field(description="Where the sites meet: a URL, or a folder all see.")
    name: SiteName = Field(description="Name of this site; no two are the same.")
    count: SiteCount = Field(
        2,
        description="Sites that a batch is cut for: each trains on 1/count of it. There may be "
        "fewer or more, for a while or always.",
    )
    quorum: PositiveCount | None = Field(
        None,
        description="Sites that must have published before a round ends; if not given, half of "
        "`count`, rounded up.",
    )
    grace: Seconds = Field(
        60.0, description="How long a round with its quorum waits for sites that were in the last."
    )
    late: PositiveCount = Field(
        4,
        description="Rounds by which a site may be late; then its samples are given out again.",
    )
    snapshot: PositiveCount = Field(
        100, description="Rounds between copies of the weights in the bucket, for sites that join."
    )
    secret: Text = Field(
        f"${SECRET_VARIABLE}",
        description="Secret by which sites sign what they publish, the same in all of them: an "
        "environment variable as $NAME, or a file.",
    )

    @property
    def needed(self) -> int:
        """Sites that a round needs."""
        return self.quorum or -(-self.count // 2)

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.quorum and self.quorum > self.count:
            what = f"more than the {self.count} sites of `count`, so no round would end"
            raise InvalidFields(("quorum", f"{what}; write {self.count} or less"))
        return self


def sites_problems(run: "Run") -> Iterator[tuple[str, str]]:
    """Yield the fields that do not go with sites: field, what is wrong and how to fix it."""
    sites, sync = run.sites, run.train.sync
    if sites is None:
        return
    if not sync.apart and not sync.auto:
        what = "sites meet after some steps of their own, and agree on nothing in between"
        yield LOCAL, f"{what}; write 30, or remove [sites]"
    if sync.stream > 1:
        what = "sites exchange the whole model at the end of a round"
        yield "train.sync.stream", f"{what}; write 1"
