"""How an attempt ended: which of the ranks that are found dead is named."""

from pathlib import Path

from penstock.launch.supervisor.attempt import AttemptRecords
from penstock.ledger.journal.writer import Journal
from penstock.run.folder import RunFolder


def test_the_rank_that_failed_first_is_named_and_not_the_peers_that_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make()
    for rank, t in ((0, 12.0), (1, 11.0), (2, 13.0)):
        with Journal(folder.journal, 1, range(rank, rank + 1)) as journal:
            journal.event("start", t=1.0)
            journal.event("end", t=t, result="failed", error="Connection closed by peer")
    with Journal(folder.journal, 1, range(3, 4)) as journal:
        journal.event("start", t=1.0)  # and no word of its end
    with Journal(folder.journal, 1, range(4, 5)) as journal:
        journal.event("end", t=10.0, result="done")
    records = AttemptRecords(folder, 1, 5)
    assert records.in_order_of_failure() == [1, 0, 2]
