"""The energy of every host reaches the one that leads, and whoever leads next."""

from pathlib import Path

import pytest

from fake_meter import gpus
from penstock.data.store.meeting_place import SharedFolder
from penstock.launch.hosts import journal_sync
from penstock.launch.hosts.mirror import FileChunk, GrowingFiles, write_chunk
from penstock.ledger.journal.energy import EnergyJournal, EnergySource, EnergySpan, read_nodes
from penstock.run.folder import RunFolder


def metered(folder: RunFolder, node: str, spans: int) -> EnergyJournal:
    folder.make()
    journal = EnergyJournal(folder.journal, node, gpus(1))
    journal.opened(0.0)
    journal.write(
        [EnergySpan(0, 2.0 * i, 2.0, 100.0, EnergySource.COUNTER) for i in range(1, spans + 1)]
    )
    return journal


def test_a_host_tells_its_own_energy_alone(tmp_path: Path):
    here, leader = RunFolder(tmp_path / "here"), RunFolder(tmp_path / "leader")
    journal = metered(here, "b", 3)
    metered(here, "a", 1).close()  # as another host has it in a folder that they share
    tail = GrowingFiles(here.path, 0, "b")
    for piece in tail.unsent():
        write_chunk(leader.path, FileChunk.from_json(piece.to_json()))
    journal.write([EnergySpan(0, 8.0, 2.0, 50.0, EnergySource.COUNTER)])
    for piece in tail.unsent():
        write_chunk(leader.path, FileChunk.from_json(piece.to_json()))
    (node,) = read_nodes(leader.journal)
    assert node.name == "b"
    assert node.records["joules"].sum() == 350.0


def test_a_piece_stays_in_the_journal(tmp_path: Path):
    with pytest.raises(ValueError, match="not a file of a journal"):
        write_chunk(tmp_path, FileChunk("journal/node-../../x.energy", 0, b"x"))


def test_whoever_leads_next_has_the_energy_of_all(tmp_path: Path):
    place = SharedFolder(tmp_path / "place")
    first, second = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    metered(first, "a", 2).close()
    metered(first, "b", 1).close()  # what the leader had heard of the other
    metered(second, "b", 4).close()
    journal_sync.push(first, place)
    journal_sync.pull(second, place)
    found = {node.name: node.records["joules"].sum() for node in read_nodes(second.journal)}
    assert found == {"a": 200.0, "b": 400.0}, "its own, which is longer, stands"
