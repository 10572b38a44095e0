"""The file of `budget.hours_csv`: price, carbon and power of each hour, and whose hours they are.

One row an hour, in order: 24 rows repeat every day, 168 every week, dated rows are taken as they
are. Every mistake names the row and the fix: a schedule by a wrong column costs money.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal
from zoneinfo import ZoneInfo

from penstock.errors import PenstockError, nearest, system_words
from penstock.found import expanded_path

HOUR_S = 3600
DAY, WEEK = 24, 168  # hours
Kind = Literal["daily", "weekly", "dated"]
# No market has a usual price above this, and prices in cents are nearly all above it.
DEAREST_USD_PER_KWH = 1.0
DIRTIEST_GCO2E_PER_KWH = 2500.0  # brown coal emits half of it


@dataclass(frozen=True)
class Hour:
    """An hour of a site. None is a column that the file does not have."""

    usd_per_kwh: float | None = None  # of what the grid delivers; may be below zero
    gco2e_per_kwh: float | None = None  # location-based: of the grid there
    market_gco2e_per_kwh: float | None = None  # market-based: by contracts and certificates
    grid_limit_w: float | None = None  # that the run may draw from the grid
    onsite_w: float | None = None  # generated on the site for the run: no price, no carbon


COLUMNS = tuple(field.name for field in fields(Hour))
# How people write the columns in other units, and what to do about it.
OTHER_UNITS = (
    (r"cent|\bct|_ct", "a price in cents; write usd_per_kwh, and divide each value by 100"),
    (r"mwh", "for each MWh; write it for each kWh, and divide each value by 1000"),
    (r"eur|gbp|inr|cny|jpy", "in another currency; write usd_per_kwh, in US dollars"),
    (r"kg", "in kg; write gco2e_per_kwh, in grams, and multiply each value by 1000"),
    (r"_kw$", "in kW; write it in watts (_w), and multiply each value by 1000"),
    (r"_mw$", "in MW; write it in watts (_w), and multiply each value by 1e6"),
)


@dataclass(frozen=True)
class HourlyCurve:
    """The hours of a file, and how they go on before and after it."""

    hours: tuple[Hour, ...]
    kind: Kind
    zone: str = "UTC"  # whose midnight the first hour of a daily or weekly file is
    start_s: float = 0.0  # of dated hours: unix seconds of the first
    source: str = ""  # the file, as it was named

    def at(self, t: float) -> Hour:
        """Return the hour that holds a moment (unix seconds)."""
        return self.hours[self._place(t)]

    def known(self, t: float) -> bool:
        """Tell whether the file itself has the moment; dated files end."""
        return self.kind != "dated" or 0 <= t - self.start_s < HOUR_S * len(self.hours)

    def has(self, column: str) -> bool:
        """Tell whether the file has a column."""
        return getattr(self.hours[0], column) is not None

    def next_hour(self, t: float) -> float:
        """Return when the next hour begins; zones may be off by half of one."""
        offset = self.start_s if self.kind == "dated" else -self._ahead_s(t)
        return offset + HOUR_S * (math.floor((t - offset) / HOUR_S) + 1)

    def _place(self, t: float) -> int:
        count = len(self.hours)
        if self.kind == "dated":
            place = math.floor((t - self.start_s) / HOUR_S)
            if 0 <= place < count:
                return place
            # Outside of the file its nearest week comes again, or its nearest day.
            period = WEEK if count >= WEEK else DAY
            return place % period if place < 0 else count - period + (place - count) % period
        local = datetime.fromtimestamp(t, ZoneInfo(self.zone))
        return local.hour + (DAY * local.weekday() if self.kind == "weekly" else 0)

    def _ahead_s(self, t: float) -> float:
        """Return how far the clock of the zone is ahead of UTC."""
        ahead = datetime.fromtimestamp(t, ZoneInfo(self.zone)).utcoffset()
        return ahead.total_seconds() if ahead else 0.0

    def clock(self, t: float) -> str:
        """Return a moment as the zone's people would say it: `06:00`."""
        return f"{datetime.fromtimestamp(t, ZoneInfo(self.zone)):%H:%M}"

    def date(self, t: float) -> str:
        """Return a moment with its day: `2026-11-20 06:00 UTC`."""
        return f"{datetime.fromtimestamp(t, ZoneInfo(self.zone)):%Y-%m-%d %H:%M %Z}"

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json keeps, so that a run goes on where the file is not."""
        rows = [asdict(hour) for hour in self.hours]
        columns = {name: [row[name] for row in rows] for name in COLUMNS if self.has(name)}
        return {
            "kind": self.kind,
            "zone": self.zone,
            "start_s": self.start_s,
            "source": self.source,
            "columns": columns,
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "HourlyCurve":
        columns = table["columns"]
        count = len(next(iter(columns.values())))
        hours = (Hour(**{name: columns[name][i] for name in columns}) for i in range(count))
        return cls(
            tuple(hours), table["kind"], table["zone"], table["start_s"], str(table["source"])
        )


def read_hours(given: str, zone: str = "UTC") -> HourlyCurve:
    """Read the file of `budget.hours_csv`. `zone` is of its hours, where they do not say it."""
    path = expanded_path(given)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise _wrong(given, f"{system_words(error)}; name a CSV file of hours") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _wrong(given, f"not a CSV file in UTF-8 ({error}); save it as one") from None
    lines = [(number, row) for number, row in enumerate(rows, 1) if any(c.strip() for c in row)]
    if not lines:
        raise _wrong(given, "empty; its first row names the columns: hour,usd_per_kwh")
    header = [name.strip() for name in lines[0][1]]
    _check_header(given, header)
    found = [_row(given, number, header, row) for number, row in lines[1:]]
    kind, start_s = _check_times(given, zone, [(n, when) for n, when, _ in found])
    curve = HourlyCurve(tuple(hour for _, _, hour in found), kind, zone, start_s, str(given))
    _check_prices(given, curve)
    return curve


def _wrong(given: str, what: str) -> PenstockError:
    return PenstockError(f"budget.hours_csv = {Path(given).name}: {what}")


def _check_header(given: str, header: Sequence[str]) -> None:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise _wrong(given, "row 1: columns must be separated by commas")
    if "hour" not in header:
        raise _wrong(
            given, "row 1: no column 'hour'; name the columns there, such as hour,usd_per_kwh"
        )
    for place, name in enumerate(header):
        if name in header[:place]:
            raise _wrong(given, f"row 1: the column '{name}' is there twice; remove one")
        if name not in (*COLUMNS, "hour"):
            other = next((fix for part, fix in OTHER_UNITS if re.search(part, name.lower())), "")
            hint = nearest(name, COLUMNS)
            known = f"columns are hour, {', '.join(COLUMNS)}"
            raise _wrong(
                given,
                f"row 1: the column '{name}' is {other or f'unknown; {known}. {hint}'}".strip(),
            )
    if not {"usd_per_kwh", "gco2e_per_kwh", "market_gco2e_per_kwh"} & {*header}:
        raise _wrong(given, "row 1: neither a price nor carbon; add usd_per_kwh or gco2e_per_kwh")


def _row(
    given: str, number: int, header: Sequence[str], row: Sequence[str]
) -> tuple[int, str, Hour]:
    """Return the row's number, its hour as written, and its values."""
    if len(row) != len(header):
        what = f"row {number}: {len(row)} values for {len(header)} columns"
        raise _wrong(given, f"{what}; a number is written 0.12, not 0,12")
    cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
    when = cells.pop("hour")
    return number, when, Hour(**{n: _number(given, number, n, cell) for n, cell in cells.items()})


def _number(given: str, row: int, name: str, cell: str) -> float:
    def wrong(what: str) -> PenstockError:
        return _wrong(given, f"row {row}: {name} = {cell or 'nothing'}: {what}")

    try:
        value = float(cell)
    except ValueError:
        raise wrong("not a number; write it without a unit, such as 0.12") from None
    if not math.isfinite(value):
        raise wrong("every hour needs a number; fill the gap or leave the column out")
    if name != "usd_per_kwh" and value < 0:
        raise wrong("below zero; write 0 or more")
    if "gco2e" in name and value > DIRTIEST_GCO2E_PER_KWH:
        raise wrong("no grid emits that much; write grams for each kWh, such as 350")
    return value


def _check_times(given: str, zone: str, when: Sequence[tuple[int, str]]) -> tuple[Kind, float]:
    """Return how the hours repeat, and when dated ones begin; refuse gaps and disorder."""
    if not when:
        raise _wrong(given, "no hours; write 24 rows or more")
    plain = [(number, int(text)) for number, text in when if text.isdecimal()]
    if plain and len(plain) < len(when):
        number = next(number for number, text in when if not text.isdecimal())
        raise _wrong(given, f"row {number}: a date among plain hours; write all hours alike")
    if plain:
        _refuse_disorder(given, [(number, float(hour)) for number, hour in plain], 1.0, "hour")
        count, last = len(plain), plain[-1][1]
        if plain[0][1] != 0 or count not in (DAY, WEEK):
            missing = next((h for h in range(DAY) if h not in {hour for _, hour in plain}), None)
            gap = f" ({missing} is missing)" if missing is not None and last < DAY else ""
            raise _wrong(
                given,
                f"{count} hours{gap}; a day has 24 rows, hour 0 to 23, and a week 168, 0 to 167 "
                "from Monday 00:00. Other spans are dated: 2026-11-18T06:00",
            )
        return ("daily" if count == DAY else "weekly"), 0.0
    dated = [(number, _unix_s(given, number, text, zone)) for number, text in when]
    _refuse_disorder(given, dated, float(HOUR_S), "hour")
    if len(dated) < DAY:
        raise _wrong(given, f"{len(dated)} hours; write at least 24, a whole day")
    return "dated", dated[0][1]


def _refuse_disorder(
    given: str, times: Sequence[tuple[int, float]], step: float, what: str
) -> None:
    for (_, before), (number, now) in pairwise(times):
        if now - before == step:
            continue
        if now == before:
            problem = "the same hour as the row before; remove one"
            if step != 1.0:
                problem += ". Where clocks go back, write each with its offset: 02:00+01:00"
        elif now < before:
            problem = "earlier than the row before; sort the rows by hour"
        else:
            over = (now - before) / step
            problem = f"{over:g} hours after the row before; write one row for every {what}"
        raise _wrong(given, f"row {number}: {problem}")


def _unix_s(given: str, row: int, text: str, zone: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(
            given,
            f"row {row}: hour = {text or 'nothing'}: not an hour; write 0 to 23, or a date such as "
            "2026-11-18T06:00",
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))).timestamp()


def _check_prices(given: str, curve: HourlyCurve) -> None:
    """Refuse prices that must be in cents, or for a MWh."""
    if not curve.has("usd_per_kwh"):
        return
    usual = median(hour.usd_per_kwh or 0.0 for hour in curve.hours)
    if usual > DEAREST_USD_PER_KWH:
        unit, divide = ("cents", 100) if usual < 100 else ("USD for a MWh or in cents", 1000)
        raise _wrong(
            given,
            f"usd_per_kwh is {usual:g} in the middle: that looks like {unit}; write USD for each "
            f"kWh, {usual:g} / {divide} = {usual / divide:g}",
        )
