"""The first message of a host that wants to join a run, and the reasons to refuse it."""

from penstock import __version__
from penstock.launch.hosts.link import Message
from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.run.fingerprint import fingerprint

# Fields that must be equal on all hosts of a run, and what a message calls them.
_MUST_EQUAL = {
    "version": "version of Penstock",
    "kind": "kind of device",
    "precision": "train.precision, where the file says auto",
    "run": "run file",
    "data": "dataset",
}


def hello(node: str, slots: int, tunnel_port: int, prepared: PreparedRun) -> Message:
    """Return what a host says about itself when it connects to the leader."""
    return {
        "node": node,
        "slots": slots,
        "tunnel": tunnel_port,
        "machine": str(prepared.machine),
        "kind": prepared.machine.kind,
        "version": __version__,
        "precision": prepared.run.train.precision,
        "run": fingerprint(prepared.run),
        "data": prepared.dataset,
    }


def refusal(own: Message, other: Message) -> str:
    """Return why the leader refuses another host, from the hello of both; "" if it does not."""
    for key, words in _MUST_EQUAL.items():
        if other.get(key) != own[key]:
            return (
                f"{other.get('node')} has another {words} than {own['node']}, which leads the run "
                f"({other.get(key)} and {own[key]}); start all hosts with the same"
            )
    return ""
