"""Incidents that the anomaly guard found, in words."""

from pathlib import Path

from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.writer import Journal
from penstock.watch.facts.incidents import MOST_SHOWN, incident_text, incidents, newest_incidents


def test_each_incident_is_shown_once(tmp_path: Path) -> None:
    with Journal(tmp_path, 0) as journal:
        journal.event("batch_skipped", step=7, why="loss nan, gradient norm 1")
        journal.event("spike", step=37, why="loss 12 where 3 is usual")
        journal.event("batch_skipped", step=37, why="found bad before")
        differ = {"replicas": [0, 1], "certain": False, "tensors": ["head"], "back_to": 40}
        journal.event("replicas_differ", step=48, **differ)
        journal.event("replica_at_fault", step=48, replicas=[1], certain=True)
        journal.event("replay_differs", step=50, pairs=[[1, 0]], replicas=[0, 1])
        journal.event("resumed", step=1)
    (file,) = journal_files(tmp_path, "events")
    found = incidents(list(read_events(file.path)))
    earlier, newest = newest_incidents(found)
    assert earlier == 0
    assert [(one.event.step, incident_text(one.event)) for one in newest] == [
        (7, "batch left out (loss nan, gradient norm 1); it is under bad/"),
        (37, "went back and left out the batch (loss 12 where 3 is usual); it is under bad/"),
        (48, "replicas differed in head; went back to step 40"),
        (48, "replica 1 had gone wrong"),
        (50, "replicas 0 and 1 computed a microbatch differently than a peer"),
    ]
    earlier, newest = newest_incidents([*found, found[0]])
    assert (earlier, len(newest)) == (1, MOST_SHOWN)
