"""`[clean]`: a preset, and the changes of this recipe to it.

A table in the recipe switches its step on; its fields replace those of the preset, and the rest
stays as in the preset. If the preset has no such step, the published defaults of `clean/config.py`
hold.
"""

import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, PlainValidator, PrivateAttr, WithJsonSchema, model_validator

from penstock.data.clean import (
    boilerplate as clean_boilerplate,
)
from penstock.data.clean import (
    language as clean_language,
)
from penstock.data.clean import (
    personal as clean_personal,
)
from penstock.data.clean.boilerplate import Boilerplate
from penstock.data.clean.config import C4, Filters, FineWeb, GopherQuality, GopherRepetition
from penstock.data.clean.custom import CustomStep
from penstock.data.clean.language import Language
from penstock.data.clean.personal import Personal
from penstock.data.clean.repair import Repair
from penstock.data.format.manifest import Json
from penstock.data.recipe.fields import Count, LanguageCode, Part, TextOrOff
from penstock.data.recipe.filters import (
    C4Section,
    FineWebSection,
    GopherQualitySection,
    GopherRepetitionSection,
)
from penstock.errors import PenstockError
from penstock.run.schema.section import Flag, InvalidFields, Section, Switch, text

# Increased when a step gives a different result for the same text and thresholds.
REVISION = 1
Preset = Literal["web", "code", "none"]
_MODULE = re.compile(r".+\.py:[A-Za-z_]\w*")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Cleaning:
    """All cleaning steps of one document; None leaves a step out."""

    repair: Repair | None
    personal: Personal | None
    boilerplate: Boilerplate | None
    language: Language | None
    filters: Filters
    steps: tuple[CustomStep, ...] = ()  # the user's own, after all others

    def identity(self) -> dict[str, Json]:
        revisions: dict[str, Json] = {
            "steps": REVISION,
            "boilerplate": clean_boilerplate.REVISION,
            "language": clean_language.REVISION,
        }
        if self.personal is not None:
            revisions["personal"] = clean_personal.REVISION
        known = asdict(replace(self, steps=()))
        del known["steps"]
        # Left out if there are none, so that older datasets keep their versions.
        own: dict[str, Json] = {"steps": [step.identity() for step in self.steps]}
        return {"revisions": revisions, **known, **(own if self.steps else {})}


_NO_FILTERS = Filters(None, None, None, None)
PRESETS: dict[Preset, Cleaning] = {
    # The filters of FineWeb (without C4's rule on the ends of lines), and boilerplate.
    "web": Cleaning(
        Repair(),
        Personal(),
        Boilerplate(),
        Language(("en",)),
        Filters(c4=C4(terminal_punctuation=False)),
    ),
    "code": Cleaning(Repair(), Personal(), None, None, _NO_FILTERS),
    "none": Cleaning(None, None, None, None, _NO_FILTERS),
}


class RepairSection(Switch):
    """Repairs encoding and whitespace."""

    mojibake: Flag = Field(Repair.mojibake, description="UTF-8 that was read as Windows-1252.")
    whitespace: Flag = Field(
        Repair.whitespace, description="Plain blanks and line feeds, none at the end of a line."
    )
    max_blank_lines: Count = Field(
        Repair.max_blank_lines, description="Largest number of blank lines in a row."
    )
    controls: Flag = Field(
        Repair.controls, description="Removes control and zero-width characters."
    )
    nfc: Flag = Field(Repair.nfc, description="Unicode's composed form.")


class PersonalSection(Switch):
    """Replaces personal data and secrets by a placeholder; `false` leaves a kind alone."""

    key: TextOrOff = Field(
        Personal.key, description="Keys of services by their shape, private keys, bearer tokens."
    )
    secret: TextOrOff = Field(
        Personal.secret,
        description="Values of passwords, secrets, tokens and keys: `password=hunter2`. Names of "
        "variables and words of letters alone stay.",
    )
    email: TextOrOff = Field(Personal.email, description="E-mail addresses.")
    ip: TextOrOff = Field(
        Personal.ip, description="IPv4 and IPv6 addresses of the public internet."
    )
    iban: TextOrOff = Field(Personal.iban, description="IBANs with right check digits.")
    card: TextOrOff = Field(Personal.card, description="Payment cards with a right check digit.")
    ssn: TextOrOff = Field(Personal.ssn, description="US social security numbers.")
    phone: TextOrOff = Field(
        Personal.phone, description="Telephone numbers, international and national."
    )


class BoilerplateSection(Switch):
    """Removes lines that every page of a site has, careful with prose and code."""

    cookies: Flag = Field(Boilerplate.cookies, description="Notices and buttons of consent.")
    navigation: Flag = Field(
        Boilerplate.navigation, description="Menus, rows of links, back to top."
    )
    breadcrumbs: Flag = Field(Boilerplate.breadcrumbs, description="Home > News > Today.")
    share: Flag = Field(Boilerplate.share, description="Buttons to share and print.")
    subscribe: Flag = Field(Boilerplate.subscribe, description="Newsletters.")
    more: Flag = Field(Boilerplate.more, description="Read more, related articles.")
    login: Flag = Field(Boilerplate.login, description="Prompts to sign in.")
    comments: Flag = Field(Boilerplate.comments, description="The form for comments.")
    advertising: Flag = Field(Boilerplate.advertising, description="Marks of advertisements.")
    copyright: Flag = Field(Boilerplate.copyright, description="Footers.")
    browser: Flag = Field(Boilerplate.browser, description="Please enable JavaScript.")
    pages: Flag = Field(
        Boilerplate.pages, description="Page numbers with their headers and footers."
    )


class LanguageSection(Switch):
    """Identifies the language of each document and keeps the wanted ones."""

    keep: tuple[LanguageCode, ...] = Field(
        Language.keep,
        description='Codes such as "en" and "de"; all if empty. `["en"]` in preset `web`.',
    )
    least: Part = Field(Language.least, description="How sure the model must be, from 0 to 1.")


def _module(found: object) -> str:
    if not _MODULE.fullmatch(text(found)):
        raise ValueError('not a file and a function; write "my_filter.py:keep"')
    return text(found)


Module = Annotated[
    str, PlainValidator(_module), WithJsonSchema({"title": "text", "type": "string"})
]


class StepSection(Section):
    """A function of your own, `keep(text, row)`, asked about each document that is left after the
    other steps: True or None keeps it, False drops it, a str replaces its text. Steps are asked in
    the order of the file."""

    module: Module = Field(
        description='File and function, "my_filter.py:keep"; relative to the recipe file. The '
        "version of the dataset depends on the file's content."
    )
    on_error: Literal["stop", "drop"] = Field(
        "stop",
        description="What to do when the function raises an error: end the build, or drop the "
        "document.",
    )
    _code: bytes | None = PrivateAttr(None)  # read once, so that key, work and version agree

    @property
    def function(self) -> str:
        return self.module.rpartition(":")[2]

    def step(self) -> CustomStep:
        path = self.module.rpartition(":")[0]
        if self._code is None:
            try:
                self._code = Path(path).read_bytes()
            except OSError as error:
                raise PenstockError(
                    f'clean.step: module = "{self.module}": the file cannot be read: '
                    f"{error.strerror}. Write a Python file and a function in it, such as "
                    '"my_filter.py:keep"; its path is relative to the recipe.'
                ) from None
        return CustomStep(path, self.function, self._code, self.on_error)


class CleanSection(Section):
    """Cleaning steps: repair, removal and filters, one document at a time."""

    preset: Preset | None = Field(
        None,
        description="`web`: all steps, for English pages, with the filters of FineWeb. `code`: "
        "repair and personal data only, for code, books and what is clean already. `none`: "
        "nothing. If not given, `web`, or `code` when a source holds conversations.",
    )
    repair: RepairSection | None = Field(None, description="Encoding, blanks, controls.")
    personal: PersonalSection | None = Field(None, description="Personal data.")
    boilerplate: BoilerplateSection | None = Field(None, description="Menus, notices, buttons.")
    language: LanguageSection | None = Field(None, description="Languages.")
    gopher_repetition: GopherRepetitionSection | None = Field(None, description="Repetition.")
    gopher_quality: GopherQualitySection | None = Field(None, description="Prose.")
    c4: C4Section | None = Field(None, description="Lines and documents of the web.")
    fineweb: FineWebSection | None = Field(None, description="Lists and menus.")
    step: tuple[StepSection, ...] = Field((), description="Functions of your own.")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [one.function for one in self.step]
        for place, name in enumerate(names):
            if name in names[:place]:
                what = f"two steps are called {name!r}, so their counts could not be told apart"
                raise InvalidFields(("step", f"{what}; give one another name"))
        return self

    def cleaning(self, otherwise: Preset) -> Cleaning:
        """Return the cleaning steps; `otherwise` is the preset if the recipe names none."""
        base = PRESETS[self.preset or otherwise]
        filters = base.filters
        return Cleaning(
            repair=_merged(self.repair, base.repair, Repair()),
            personal=_merged(self.personal, base.personal, Personal()),
            boilerplate=_merged(self.boilerplate, base.boilerplate, Boilerplate()),
            language=_merged(self.language, base.language, Language()),
            filters=Filters(
                _merged(self.gopher_repetition, filters.gopher_repetition, GopherRepetition()),
                _merged(self.gopher_quality, filters.gopher_quality, GopherQuality()),
                _merged(self.c4, filters.c4, C4()),
                _merged(self.fineweb, filters.fineweb, FineWeb()),
            ),
            steps=tuple(one.step() for one in self.step),
        )


def _merged(section: Switch | None, preset: _T | None, published: _T) -> _T | None:
    if section is None:
        return preset
    if not section.on:
        return None
    given: dict[str, Any] = {name: getattr(section, name) for name in section.model_fields_set}
    given.pop("on", None)
    base: Any = published if preset is None else preset
    assert given.keys() <= {field.name for field in fields(base)}
    merged: _T = replace(base, **given)
    return merged
