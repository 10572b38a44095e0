"""Two sites that meet in a bucket, as scratch runs of their own, and the faults between them.

Each site reaches the store through a proxy of its own, so the drill can cut one off, or take the
bucket away from both. The records of the rounds tell what was merged. With the samples that the
ranks wrote down they tell whether each sample was used once.
"""

import contextlib
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.data.store.objects import Store
from penstock.drill import audit
from penstock.drill.drill_run import DrillRun, DrillStuck
from penstock.drill.faults import OFFSET_S, DrillFault, InjectedFault, ScratchScale
from penstock.drill.judge import DrillVerdict
from penstock.drill.store_proxy import ENDPOINT, StoreProxy
from penstock.ledger.journal.events import JournalEvent, SiteRound, StoreUnreachable
from penstock.ledger.journal.read import JournalLine, lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.policy.sites import LeaseCut
from penstock.run.schema.sites import SECRET_VARIABLE
from penstock.train.sites.objects import BadObject, unseal
from penstock.watch.facts.run_view import RunView

NAME = "sites"  # of the run, which is the same in both sites
SITES = ("a", "b")
LOCAL_STEPS = 2
CUT_ROUNDS = 3  # that one site makes while the other is cut off
SLOW_S = (0.5, 0.1)  # stopped, and going
# Both sites are in every round, however late, so the weights are those of undisturbed sites.
STEADY = ("sites.quorum=2", "sites.grace=10 min")
# A round goes on without a site. The first one waits as long, for both to have started.
LOOSE = ("sites.quorum=1", "sites.grace=10 s", "sites.late=1000")


@dataclass
class SitesDrill:
    """Both sites of a drill. `start` begins them; `finish` waits for their end."""

    runs: dict[str, DrillRun]
    proxies: dict[str, StoreProxy]
    bucket: Store  # past the proxies
    secret: bytes
    cut: LeaseCut
    batch: int  # samples of a step, of both sites together
    injected: list[InjectedFault] = field(default_factory=list)

    def start(self) -> None:
        for one in self.runs.values():
            one.start()

    def finish(self) -> None:
        for one in self.runs.values():
            if one.end():
                raise DrillStuck(f"site {one.folder.path.parent.name}: {one.last_error()}")

    def clear(self) -> None:
        for one in self.runs.values():
            one.clear()
        for proxy in self.proxies.values():
            proxy.close()
        for found in self.bucket.list():
            self.bucket.delete(found.name)

    def struck(self, what: str, lethal: bool = False) -> None:
        """Record that the drill disturbs the sites now."""
        self.injected.append(InjectedFault(time.monotonic(), 0, None, what, lethal))

    def lines(self, site: str) -> list[JournalLine]:
        """Return what the rank of a site has written down so far, and its supervisor."""
        journal = self.runs[site].folder.journal
        if not journal.is_dir():
            return []
        files = [file.path for file in journal_files(journal, "events")]
        return [line for path in [journal / SUPERVISOR, *files] for line in read_events(path)]

    def rounds(self, site: str) -> list[SiteRound]:
        return [line.event for line in lines_of(self.lines(site), SiteRound)]

    def newest(self, site: str) -> int:
        """Return the last round that a site has merged."""
        return max((one.number for one in self.rounds(site)), default=0)

    def merged_late(self, site: str) -> bool:
        """Return whether work of a site was merged in a later round than that of others."""
        return any(one.late.get(site, 0) > 0 for one in self.rounds(SITES[0]))

    def wait_for_rounds(self, site: str, number: int) -> None:
        self.wait_until(
            lambda: self.newest(site) >= number, f"site {site} did not come to round {number}"
        )

    def wait_for(self, site: str, cls: type[JournalEvent]) -> None:
        self.wait_until(
            lambda: bool(lines_of(self.lines(site), cls)), f"site {site}: no `{cls.kind}`"
        )

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        one = self.runs[SITES[0]]
        one.wait_until(lambda: done() or all(run.ended() for run in self.runs.values()), what)
        if not done():
            raise DrillStuck(f"{what}, and both have ended")

    def weights_hash(self, site: str) -> str:
        return RunView(self.runs[site].folder).weights_hash or ""

    def merged(self) -> list[tuple[str, int]]:
        """Return whose work on which leases the rounds have merged, by their records."""
        found = []
        for name in sorted(one.name for one in self.bucket.list("rounds")):
            try:
                table, _ = unseal(name, self.bucket.get(name), self.secret, 0)
            except BadObject:
                continue  # no site's
            members = table.get("members", [])
            found += [(m["site"], m["lease"]) for m in members if m["lease"] is not None]
        return found

    def samples(self) -> audit.SampleCounts:
        """Count how often the merged work has used each sample of the run."""
        used = {site: audit.read(self.runs[site].folder.audit) for site in SITES}
        rows: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
        for site, lines in used.items():
            for line in lines:
                rows.setdefault((site, line.step, line.data_rank), set()).add(
                    (line.first, line.stop)
                )
        times: Counter[int] = Counter()
        for site, lease in self.merged():
            for step in self.cut.batches(lease):
                for first, stop in rows.get((site, step, self.cut.part(lease)), ()):
                    times.update(range(first, stop))
        every = self.cut.steps * self.batch
        lost = sum(sample not in times for sample in range(every))
        return audit.SampleCounts(lost, sum(n - 1 for n in times.values()))


def make_drill(
    files: dict[str, Path],
    make: Callable[[Path, list[str]], DrillRun],
    place: str,
    scale: ScratchScale,
    batch: int,
    fields: tuple[str, ...],
) -> SitesDrill:
    """Return the drill of two sites by their run files, which differ in their folder alone."""
    secret = secrets.token_hex(16)
    proxies = {site: StoreProxy(os.environ[ENDPOINT]) for site in SITES}
    runs = {}
    for site, file in files.items():
        own = [
            *("cluster.accelerators=1", f"train.sync.local_steps={LOCAL_STEPS}"),
            *(f"sites.bucket={place}", f"sites.name={site}", f"sites.count={len(SITES)}"),
            *fields,
        ]
        runs[site] = make(file, own)
        runs[site].env = {ENDPOINT: proxies[site].url, SECRET_VARIABLE: secret}
    cut = LeaseCut(scale.steps, LOCAL_STEPS, len(SITES))
    return SitesDrill(runs, proxies, Store(f"{place}/{NAME}"), secret.encode(), cut, batch)


SiteAction = Callable[[SitesDrill], None]


def calm(drill: SitesDrill) -> None:
    """Do nothing: the sites that all others are compared with."""
    drill.start()


def cut_site(drill: SitesDrill) -> None:
    """Cut a site off from the store until the other one has gone on for some rounds."""
    drill.start()
    drill.runs["b"].wait_for_held_rank()
    drill.struck("the store out of reach of site b")
    drill.proxies["b"].shut()
    drill.runs["b"].release()
    drill.wait_for("b", StoreUnreachable)
    drill.wait_for_rounds("a", drill.newest("a") + CUT_ROUNDS)
    drill.proxies["b"].open()


def slow_site(drill: SitesDrill) -> None:
    """Hold a site until the other one goes on without it; then stop and continue its rank in turn
    until its work was merged late.
    """
    drill.start()
    held = drill.runs["b"].wait_for_held_rank()
    drill.struck("site b slowed")
    drill.wait_for_rounds("a", drill.newest("a") + 1)
    drill.runs["b"].release()
    stopped_s, going_s = SLOW_S
    while not drill.runs["b"].ended() and not drill.merged_late("b"):
        with contextlib.suppress(ProcessLookupError):  # it may end meanwhile
            os.kill(held.pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(held.pid, signal.SIGCONT)
        time.sleep(going_s)


def bucket_away(drill: SitesDrill) -> None:
    """Take the bucket away from both sites for a while."""
    drill.start()
    drill.runs["b"].wait_for_held_rank()
    drill.struck("the bucket out of reach of both sites")
    for proxy in drill.proxies.values():
        proxy.shut()
    drill.runs["b"].release()
    for site in SITES:
        drill.wait_for(site, StoreUnreachable)
    for proxy in drill.proxies.values():
        proxy.open()


def replayed_round(drill: SitesDrill) -> None:
    """Put copies of an old round, and of old work of a site, where the next ones will be."""
    drill.start()
    drill.runs["b"].wait_for_held_rank()
    newest = drill.newest("a")
    drill.struck("copies of an old round and of old work of site b in the place of later ones")
    old_round, old_work = drill.bucket.get("rounds/000002"), drill.bucket.get("published/000001/b")
    for number in (newest + 1, newest + 2):
        drill.bucket.create(f"rounds/{number:06d}", old_round)
        drill.bucket.create(f"published/{number:06d}/b", old_work)
    drill.runs["b"].release()


SITE_ACTIONS: dict[str, SiteAction] = {
    "": calm,
    "cut_site": cut_site,
    "slow_site": slow_site,
    "bucket_away": bucket_away,
    "replayed_round": replayed_round,
}


def judge_sites(drill: SitesDrill, fault: DrillFault, undisturbed: str) -> DrillVerdict:
    """Judge two sites that have ended. `undisturbed` is the hash of the weights of calm ones."""
    views = {site: RunView(one.folder) for site, one in drill.runs.items()}
    hashes = {site: drill.weights_hash(site) for site in SITES}
    injected = [*drill.injected]
    why = []
    for site, one in drill.runs.items():
        injected += one.injected()
        why += [f"the injection {name} did not happen" for name in one.missed()]
        if views[site].status != "done":
            why.append(f"site {site} ended as '{views[site].status}', not 'done'")
    counts, merged = drill.samples(), drill.merged()
    if sorted(lease for _, lease in merged) != list(range(drill.cut.total)):
        why.append(f"{len(merged)} leases were merged, not each of {drill.cut.total} once")
    if counts.lost or counts.doubled:
        why.append(f"{counts.lost} samples lost, {counts.doubled} doubled")
    alike = len(set(hashes.values())) == 1 and hashes["a"]
    if not alike:
        why.append("the weights of the sites differ")
    same = hashes["a"] == undisturbed
    if fault.outcome == "same" and undisturbed and not same:
        why.append("the weights differ from those of undisturbed sites")
    report = _first_report(drill, fault, injected)
    if fault.reported_by and not report:
        why.append(f"nothing reported it ({' or '.join(fault.reported_by)})")
    return DrillVerdict(
        fault=fault.name,
        what=fault.what,
        passed=not why,
        why=why,
        detected_by=report[0] if report else "",
        detection_s=report[1] if report else None,
        lost=counts.lost,
        doubled=counts.doubled,
        weights="equal" if alike and same else "alike" if alike else "differ",
        blows=[str(one) for one in injected],
        wall_s=max(view.account.wall_s for view in views.values()),
    )


def _first_report(
    drill: SitesDrill, fault: DrillFault, injected: list[InjectedFault]
) -> tuple[str, float] | None:
    if not injected:
        return None
    began = min(one.t for one in injected) + OFFSET_S
    told = []
    for site in SITES:
        for line in drill.lines(site):
            late = isinstance(line.event, SiteRound) and any(line.event.late.values())
            kind = "late_round" if late else line.kind
            if kind in fault.reported_by and line.t >= began - 0.05:
                told.append((max(0.0, line.t - began), kind))
    return min(told)[1::-1] if told else None
