"""The file of `budget.hours_csv`: what it means, and how its mistakes are said."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.run.hours import Hour, HourlyCurve, read_hours

HEAD = "hour,usd_per_kwh"
PLAIN = [f"{hour},0.1" for hour in range(24)]


def written(folder: Path, *rows: str, head: str = HEAD) -> str:
    path = folder / "hours.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_a_day_repeats_at_the_midnight_of_its_zone(tmp_path: Path) -> None:
    path = written(tmp_path, *(f"{hour},{hour / 100}" for hour in range(24)))
    assert read_hours(path).at(unix("2026-11-18T06:59:59")).usd_per_kwh == 0.06
    india = read_hours(path, "Asia/Kolkata")  # half an hour off: hours begin at :30 UTC
    assert india.at(unix("2026-11-18T06:29:00")).usd_per_kwh == 0.11
    assert india.at(unix("2026-11-18T06:30:00")).usd_per_kwh == 0.12
    assert india.next_hour(unix("2026-11-18T06:29:00")) == unix("2026-11-18T06:30:00")
    assert india.clock(unix("2026-11-18T06:30:00")) == "12:00"
    summer, winter = unix("2026-10-24T10:00"), unix("2026-10-26T10:00")
    berlin = read_hours(path, "Europe/Berlin")
    assert (berlin.at(summer).usd_per_kwh, berlin.at(winter).usd_per_kwh) == (0.12, 0.11)


def test_a_week_begins_on_monday(tmp_path: Path) -> None:
    curve = read_hours(written(tmp_path, *(f"{hour},{hour / 1000}" for hour in range(168))))
    assert curve.kind == "weekly"
    assert curve.at(unix("2026-11-16T00:30")).usd_per_kwh == 0  # a Monday
    assert curve.at(unix("2026-11-22T23:30")).usd_per_kwh == 0.167


def test_dated_hours_are_taken_as_they_are_and_their_last_day_comes_again(tmp_path: Path) -> None:
    rows = [f"2026-11-{18 + hour // 24}T{hour % 24:02}:00,{hour / 100}" for hour in range(30)]
    curve = read_hours(written(tmp_path, *rows))
    assert curve.at(unix("2026-11-19T05:10")).usd_per_kwh == 0.29
    assert curve.known(unix("2026-11-19T05:59"))
    assert not curve.known(unix("2026-11-19T06:00"))
    assert curve.at(unix("2026-11-19T06:00")).usd_per_kwh == 0.06
    assert curve.at(unix("2026-11-17T23:00")).usd_per_kwh == 0.23
    with_zone = read_hours(written(tmp_path, *(row.replace(",", "+01:00,") for row in rows)))
    assert with_zone.start_s == curve.start_s - 3600


def test_it_goes_into_a_plan_and_back(tmp_path: Path) -> None:
    head = "hour,usd_per_kwh,gco2e_per_kwh,market_gco2e_per_kwh,grid_limit_w,onsite_w"
    curve = read_hours(written(tmp_path, *(f"{h},-0.1,{h},0,5e5,0" for h in range(24)), head=head))
    assert curve.hours[3] == Hour(-0.1, 3.0, 0.0, 5e5, 0.0)
    assert HourlyCurve.from_json(curve.to_json()) == curve


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (PLAIN[:23], r"23 hours \(23 is missing\); a day has 24 rows"),
        (PLAIN[1:], r"23 hours \(0 is missing\)"),
        ([*PLAIN[:5], *PLAIN[6:]], "row 7: 2 hours after the row before"),
        ([*PLAIN[:5], PLAIN[4], *PLAIN[5:]], "row 7: the same hour as the row before; remove one"),
        ([PLAIN[1], PLAIN[0], *PLAIN[2:]], "row 3: earlier than the row before; sort"),
        ([*PLAIN[:7], "7,nan", *PLAIN[8:]], "row 9: usd_per_kwh = nan: every hour needs a number"),
        ([*PLAIN[:7], "7,", *PLAIN[8:]], "row 9: usd_per_kwh = nothing: not a number"),
        ([*PLAIN[:7], "7,inf", *PLAIN[8:]], "row 9: usd_per_kwh = inf"),
        ([*PLAIN[:7], "7,12 ct", *PLAIN[8:]], "row 9: usd_per_kwh = 12 ct: not a number"),
        ([*PLAIN[:7], "7,0,12", *PLAIN[8:]], r"row 9: 3 values for 2 columns; a number is written"),
        ([f"{hour},12.5" for hour in range(24)], "looks like cents; .* 12.5 / 100 = 0.125"),
        ([f"{hour},110" for hour in range(24)], "looks like USD for a MWh"),
        (["2026-11-18T00:00,0.1", *PLAIN], "row 3: .*|row 2: a date among plain hours"),
        (["yesterday,0.1"] * 24, "row 2: hour = yesterday: not an hour"),
        ([f"2026-11-18T{h:02}:00,0.1" for h in range(23)], "23 hours; write at least 24"),
        ([], "no hours"),
    ],
)
def test_mistakes_name_the_row_and_the_fix(tmp_path: Path, rows: list[str], said: str) -> None:
    with pytest.raises(PenstockError, match=said) as told:
        read_hours(written(tmp_path, *rows))
    assert str(told.value).startswith("budget.hours_csv = hours.csv: ")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("hour,cents_per_kwh", "a price in cents; write usd_per_kwh, and divide each value by 100"),
        ("hour,usd_per_mwh", "for each MWh"),
        ("hour,eur_per_kwh", "another currency"),
        ("hour,usd_per_kw", "Did you mean|in kW"),
        ("hour,price", "unknown; columns are hour, usd_per_kwh"),
        ("hour,onsite_w", "neither a price nor carbon"),
        ("time,usd_per_kwh", "no column 'hour'"),
        ("hour;usd_per_kwh", "separated by commas"),
    ],
)
def test_columns_in_other_units_are_refused(tmp_path: Path, head: str, said: str) -> None:
    with pytest.raises(PenstockError, match=f"row 1: .*({said})"):
        read_hours(written(tmp_path, *PLAIN, head=head))


def test_hours_that_a_clock_change_repeats_need_their_offset(tmp_path: Path) -> None:
    rows = [f"2026-10-25T{h:02}:00,0.1" for h in (0, 1, 2, 2, *range(3, 24))]
    with pytest.raises(PenstockError, match=r"row 5: the same hour .* write each with its offset"):
        read_hours(written(tmp_path, *rows), "Europe/Berlin")


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="No such file or directory; name a CSV"):
        read_hours(str(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PenstockError, match="not a CSV file in UTF-8"):
        read_hours(str(tmp_path / "bytes.csv"))
