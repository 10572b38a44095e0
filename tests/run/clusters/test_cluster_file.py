"""A cluster file: what it takes, how it says what is wrong, and that it loads back equal."""

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.run.clusters import reference
from penstock.run.clusters.load import CLUSTER, load_cluster, save_cluster

DOCS = Path(__file__).parents[3] / "docs" / "cluster-file.md"
WHOLE = """\
nodes = 4
launcher = "slurm"
[accelerator]
name = "H100"
memory = "80 GiB"
matmul.bf16 = "650 TFLOP/s"
matmul.fp8 = 1.2e15
tdp_w = 700
[node]
accelerators = 8
host_w = "2 kW"
[[tier]]
name = "node"
size = 8
bandwidth = "360 GB/s"
latency = "3 us"
[[tier]]
name = "spine"
size = 32
bandwidth = "400 Gbit/s"
oversubscription = 2
[site]
name = "us-east-1"
power_limit_w = "2 MW"
[failures]
node_mtbf = "900 days"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def wrong(folder: Path, text: str) -> str:
    with pytest.raises(PenstockError) as caught:
        load_cluster(written(folder, text))
    return str(caught.value)


def test_units_are_read(tmp_path: Path) -> None:
    file = load_cluster(written(tmp_path, WHOLE))
    assert file.name == "mine"
    assert file.accelerator.matmul.bf16 == 650e12
    assert file.accelerator.matmul.fp8 == 1.2e15
    assert file.node.host_w == 2000
    assert file.tier[0].latency == pytest.approx(3e-6)
    assert file.tier[1].bandwidth == 50e9
    assert file.site.power_limit_w == 2e6
    assert file.failures.node_mtbf == 900 * 86400


def test_it_loads_back_equal(tmp_path: Path) -> None:
    file = load_cluster(written(tmp_path, WHOLE))
    again = tmp_path / "deeper" / "mine.toml"
    save_cluster(file, again, "a note")
    assert again.read_text().startswith("# a note\n")
    assert load_cluster(again) == file


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("nodes = 4", "nodes = 0"), 1, "too few units; write 1 or more"),
        (('name = "H100"', 'nmae = "H100"'), 4, "Did you mean 'name'?"),
        (("[accelerator]\n", "[accelerator]\nnodes = 4\n"), 4, "at the top of the file"),
        (("360 GB/s", "360 GB"), 15, 'such as "400 Gbit/s"'),
        (("650 TFLOP/s", "650 TFLOPS"), 6, '"790 TFLOP/s"'),
        (("2 kW", "2 kWh"), 11, '"2 MW"'),
        (("3 us", "3 hops"), 16, '"5 us"'),
        (('"slurm"', '"slrum"'), 2, "Did you mean 'slurm'?"),
        (("80 GiB", "0 GiB"), 5, "more than zero"),
        (("size = 32", "size = 4"), 12, "sizes must grow"),
        (("oversubscription = 2", "oversubscription = 0.5"), 21, "at least 1"),
    ],
)
def test_a_mistake_is_reported_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, says: str
) -> None:
    text = WHOLE.replace(*change)
    assert text != WHOLE
    message = wrong(tmp_path, text)
    assert f"mine.toml:{line}: " in message
    assert says in message
    assert "\n" not in message


def test_two_mistakes_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = WHOLE.replace("nodes = 4", "nodes = 0").replace("360 GB/s", "fast")
    first, second = wrong(tmp_path, text).splitlines()
    assert "mine.toml:1: nodes = 0" in first
    assert "mine.toml:15: tier[0].bandwidth" in second


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("nodes = 4\n", 'name = "H100"'),
        ("nodes = four\n", ":1:"),
        ("tier = 3\n[accelerator]\nname = 'H100'\n", "[[tier]]"),
        ("accelerator = 'H100'\n", "write [accelerator] on a line of its own"),
        ("[accelerator]\nname='x'\n[probe]\n", "missing"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, says: str) -> None:
    assert says in wrong(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no such file"):
        load_cluster(tmp_path / "none.toml")


def test_readings_are_rows_of_positive_numbers(tmp_path: Path) -> None:
    head = "[accelerator]\nname='x'\n[probe]\n"
    for bad in ("3", "[[1, 2, 3]]", "[[1, -2.0]]", "[[1, true]]", "[1, 2]"):
        assert "rows of [size, seconds]" in wrong(tmp_path, f"{head}update_s = {bad}\n")


def test_the_written_reference_is_up_to_date() -> None:
    fresh = "run: python -m penstock.run.clusters.reference > docs/cluster-file.md"
    assert DOCS.read_text(encoding="utf-8") == reference.markdown(), fresh


def test_every_field_is_described() -> None:
    for field in CLUSTER.by_path.values():
        assert field.info.description, field.name
        assert field.info.description.endswith((".", '".')), field.name


def test_sites_and_their_links(tmp_path: Path) -> None:
    link = 'upload = "20 Mbit/s"\ndownload = "40 Mbit/s"\nround_trip = "60 ms"\n'
    berlin = f'[[sites]]\nname = "berlin"\nnodes = 2\n{link}'
    file = load_cluster(written(tmp_path, WHOLE + berlin + f'[[sites]]\nname = "paris"\n{link}'))
    assert [site.name for site in file.sites] == ["berlin", "paris"]
    assert file.sites[0].upload == 2.5e6
    assert file.sites[0].round_trip == pytest.approx(0.06)
    save_cluster(file, tmp_path / "again.toml")
    assert load_cluster(tmp_path / "again.toml") == file
    assert 'two are named "berlin"' in wrong(tmp_path, WHOLE + berlin + berlin)
