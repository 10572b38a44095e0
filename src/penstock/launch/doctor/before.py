"""The short examination before a run is submitted: a bad node is left out, or the run stops."""

from penstock.errors import RunFailed
from penstock.launch.doctor.examine import examine
from penstock.launch.doctor.finding import Examination
from penstock.launch.doctor.fleet import Target
from penstock.launch.prepare.listener import Listener
from penstock.launch.ssh.hosts import nodes_of
from penstock.run.schema.run import Run


def without_bad_nodes(run: Run, folder: str, listener: Listener) -> Run:
    """Examine the hosts of a run and return it without the bad ones.

    Only a list of hosts can be examined before they are used: a scheduler chooses its nodes later.
    """
    if len(run.cluster.ssh.hosts) < 2:
        return run
    found = examine(Target.of_run(run), run, short=True, folder=folder)
    for one in found.findings:
        if one.level != "ok" and not (one.level == "bad" and one.spoils):
            listener.warning(str(one))
    return leave_out(run, found, listener)


def leave_out(run: Run, found: Examination, listener: Listener) -> Run:
    """Return the run without the nodes that were found bad; stop where too few are left."""
    if not found.bad_nodes:
        return run
    reasons = [str(one) for one in found.bad if one.spoils]
    nodes = nodes_of(run.cluster.ssh)
    left = [host.written for node, host in nodes.items() if node not in found.bad_nodes]
    if not left:
        raise RunFailed("\n".join([*reasons, "no host is good; `penstock doctor` examines them"]))
    if run.layout is not None and len(left) < run.cluster.nodes:
        last = (
            f"the layout of the file needs {run.cluster.nodes} nodes and {len(left)} are good; "
            "mend the others, or leave [layout] out and it is planned for those that are there"
        )
        raise RunFailed("\n".join([*reasons, last]))
    for reason in reasons:
        listener.warning(f"left out: {reason}")
    section = run.cluster.ssh.model_copy(update={"hosts": tuple(left)})
    cluster = run.cluster.model_copy(update={"ssh": section})
    return run.model_copy(update={"cluster": cluster})
