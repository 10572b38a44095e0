"""Bad inputs for every verb: what is typed, what was done to the folder before, and the answer.

`tests/cli/test_bad_inputs.py` holds each to its exit code and to words of its message, without a
traceback and without harm to the run that is there. `scripts/bad_inputs.py` writes the table in
docs/faults.md.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUN_FILE = """\
name = "mine"
[model]
layers = 1
hidden = 16
heads = 2
ffn = 32
[data]
dataset = "tiny"
sequence = 16
[train]
steps = 4
batch_tokens = 64
precision = "fp32"
[evaluate]
every = "2 steps"
[guard]
checkpoint = "2 steps"
[cluster]
accelerators = 1
"""
OWN_FILE = """\
name = "own"
[model]
module = "own.py:build"
[data]
dataset = "tiny"
sequence = 16
[train]
steps = 4
batch_tokens = 64
learning_rate = 1e-3
precision = "fp32"
[cluster]
accelerators = 1
"""
OWN_CODE = """\
import torch


def build():
    return torch.nn.Sequential(torch.nn.Embedding(300, 8), torch.nn.Linear(8, 300))


def small():
    return torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100))


def broken():
    raise RuntimeError("no weights at home")


def number():
    return 3


def takes(width):
    return torch.nn.Linear(width, 300)
"""
RECIPE = '[[source]]\npath = "rows.jsonl"\n[clean]\npreset = "none"\n[tokens]\nvocab = 300\n'
ROWS = "".join(json.dumps({"text": f"A row with words of number {i}."}) + "\n" for i in range(20))

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One bad input. `says` are words that the answer must hold, in any case."""

    command: str
    says: str
    code: int = 2
    change: Change | None = None  # done to the folder first
    about: str = ""  # what `change` does, for the table

    @property
    def verb(self) -> str:
        words = self.command.split()
        return " ".join(words[:2] if words[0] in ("data", "checkpoint") else words[:1])


@dataclass(frozen=True)
class Answer:
    """What the command line gave back."""

    code: int
    out: str
    err: str
    crash: str  # the traceback of an exception that nobody caught; "" where there is none

    @property
    def message(self) -> str:
        return f"{self.err}\n{self.out}"

    @property
    def first_line(self) -> str:
        lines = [line.strip(" │╭╰─╮╯") for line in self.err.splitlines()]
        lines = [
            line for line in lines if line and not line.startswith(("Usage", "Try '", "Error"))
        ]
        return lines[0].removeprefix("error: ") if lines else self.out.strip().splitlines()[0]


def make_folder(folder: Path, runs: Path) -> None:
    """Make the folder of a case: a good run file, a recipe with its rows, and a finished run."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(RUN_FILE)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "own.toml").write_text(OWN_FILE)
    (folder / "own.py").write_text(OWN_CODE)
    (folder / "rows.jsonl").write_text(ROWS)
    pipes = shutil.ignore_patterns("*.pipe")  # of NCCL, where there is a GPU
    shutil.copytree(runs, folder / "runs", ignore=pipes)


def ask(case: Case, folder: Path) -> Answer:
    """Type the command in the folder, in this process."""
    from penstock.cli.main import main

    if case.change:
        case.change(folder)
    out, err, crash, code = io.StringIO(), io.StringIO(), "", 0
    before, argv = Path.cwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["penstock", *shlex.split(case.command)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(bool(left.code))
    except BaseException:
        crash, code = traceback.format_exc(), 1
    finally:
        os.chdir(before)
        sys.argv = argv
    return Answer(code, out.getvalue(), err.getvalue(), crash)


def write(name: str, text: str | bytes) -> Change:
    """Write a file of the folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return change


def edit(old: str, new: str, name: str = "run.toml") -> Change:
    """Replace a piece of a file of the folder."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def remove(name: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return change


def cut(name: str, left: int) -> Change:
    """Cut a file of the folder after `left` bytes."""
    return lambda folder: os.truncate(folder / name, left)


def make_dir(name: str) -> Change:
    return lambda folder: (folder / name).mkdir(parents=True)


def link_to_itself(name: str) -> Change:
    return lambda folder: (folder / name).symlink_to(name)


def all_of(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def overrides(verb: str, cases: list[tuple[str, str]]) -> list[Case]:
    """Cases of one verb with fields on its command line."""
    return [Case(f"{verb} run.toml {shlex.quote(words)}", says) for words, says in cases]


LONG = "n" * 300
# What the file itself cannot be; each is given to one of check, plan and train in turn.
FIELDS: list[tuple[str, str]] = [
    ("train.tokns=2M", "train.tokns"),
    ("trian.steps=3", "trian"),
    ("train.steps=-1", "train.steps"),
    ("train.steps=0", "train.steps"),
    ("train.steps=many", "train.steps"),
    ("train.tokens=0", "train.tokens"),
    ("train.tokens=2 apples", "train.tokens"),
    ("train.batch_tokens=65", "train.batch_tokens"),
    ("train.learning_rate=-1", "train.learning_rate"),
    ("train.learning_rate=nan", "train.learning_rate"),
    ("train.learning_rate=inf", "train.learning_rate"),
    ("train.optimizer=sgd", "train.optimizer"),
    ("train.precision=fp16", "train.precision"),
    ("train.precision=int3", "train.precision"),
    ("train.schedule=linear", "train.schedule"),
    ("train.warmup=9 steps", "train.warmup"),
    ("train.betas=[0.9]", "train.betas"),
    ("train.seed=-4", "train.seed"),
    ("train.weights=bf16", "train.weights"),
    ("train.sync.compress=zip", "compress"),
    ("model.layers=0", "model.layers"),
    ("model.hidden=1e30", "model.hidden"),
    ("model.heads=3", "heads"),
    ("model.preset=llama-99b", "model.preset"),
    ("data.dataset=fineweb", "fineweb"),
    ("data.dataset=./nowhere", "nowhere"),
    ("data.dataset=tiny@ffffffff", "tiny@ffffffff"),
    ("data.dataset=''", "data.dataset"),
    ("data.dataset=ftp://host/x", "ftp://host/x"),
    ("data.sequence=0", "data.sequence"),
    ("data.sequence=1B", "data.sequence"),
    ("data.on_bad_shard=ignore", "data.on_bad_shard"),
    ("model.vocab=100", "model.vocab"),
    ("evaluate.every=often", "evaluate.every"),
    ("evaluate.holdout=100%", "evaluate.holdout"),
    ("evaluate.holdout=-1%", "evaluate.holdout"),
    ("layout.shard=3", "layout"),
    ("layout.tensor=2", "layout"),
    ("layout.pipeline=5", "layout"),
    ("layout.recompute=some", "layout.recompute"),
    ("cluster.accelerators=640", "cluster.accelerators"),
    ("cluster.accelerators=none", "cluster.accelerators"),
    ("cluster.nodes=0", "cluster.nodes"),
    ("cluster.launcher=pbs", "cluster.launcher"),
    ("cluster.launcher=ssh", "cluster.ssh.hosts"),
    ("guard.checkpoint=sometimes", "guard.checkpoint"),
    ("guard.keep=0", "guard.keep"),
    ("guard.mode=immortal", "guard.mode"),
    ("guard.durable=ftp://host/x", "guard.durable"),
    ("guard.grace=-1 s", "guard.grace"),
    ("budget.usd=-5", "budget.usd"),
    ("budget.hours=0", "budget.hours"),
    ("log.webhook=not a url", "log.webhook"),
    ("name=../up", "name"),
    (f"name={LONG}", "name"),
    ("name=", "name"),
    ("nosuchfield", "nosuchfield"),
    ("=3", "=3"),
    ("train.objective=kto", "not built"),
    ("train.objective=simpo", "model.from"),
    ("train.preference.gamma=1", 'objective = "simpo"'),
    ("train.preference.gamma=-1", "train.preference.gamma"),
]
VERBS = ("check", "plan", "train")
# Fields that only a launch reads: a plan is none of their business.
NOT_PLANNED = ("model.module", "data.dataset", "model.vocab", "cluster.acc", "cluster.launcher")


def _field_cases() -> list[Case]:
    cases = []
    for place, (words, says) in enumerate(FIELDS):
        verb = VERBS[place % 3]
        if verb == "plan" and words.startswith(NOT_PLANNED):
            verb = "check"
        cases += overrides(verb, [(words, says)])
    return cases


# What the file itself can be like.
FILES = [
    Case("{verb} nothere.toml", "nothere.toml"),
    Case("{verb} .", ".", about="a folder instead of a file"),
    Case("{verb} run.toml", "not TOML", change=write("run.toml", "name = \n"), about="not TOML"),
    Case("{verb} run.toml", "run.toml", change=write("run.toml", b"\xff\xfe\x00"), about="no text"),
    Case("{verb} run.toml", "is empty", change=write("run.toml", ""), about="an empty file"),
    Case(
        "{verb} run.toml",
        "run.toml",
        change=all_of(remove("run.toml"), link_to_itself("run.toml")),
        about="a link to itself",
    ),
    Case(
        "{verb} run.toml",
        "keep one of",
        change=edit("[train]", '[train]\ntokens = "2M"'),
        about="steps and tokens",
    ),
    Case(
        "{verb} run.toml",
        "stands once",
        change=edit("[train]", "[train]\nsteps = 5"),
        about="a key that stands twice",
    ),
    Case(f"{{verb}} {LONG * 20}.toml", "name", about="a name that is too long"),
]


def _file_cases() -> list[Case]:
    return [
        Case(c.command.format(verb=verb), c.says, c.code, c.change, c.about)
        for place, c in enumerate(FILES)
        for verb in (VERBS[place % 3], VERBS[(place + 1) % 3])
    ]


DONE = "runs/done"
OTHER = [
    # init
    Case("init", "run.toml", about="the file is there"),
    Case("init sideways", "sideways"),
    Case("init --out nowhere/deep/run.toml", "nowhere"),
    # plan
    Case("plan run.toml --explain nonsense", "nonsense"),
    Case("plan run.toml --scale 8..4", "8..4"),
    Case("plan run.toml --scale many", "many"),
    Case("plan run.toml --deadline yesterday", "yesterday"),
    Case("plan run.toml --budget=-3", "-3"),
    Case("plan run.toml cluster.use=A100-40000", "A100-40000"),
    Case("plan run.toml cluster.use=nothere.toml", "nothere.toml"),
    Case(
        "plan run.toml cluster.use=c.toml",
        "c.toml",
        change=write("c.toml", 'accelerator = "H100"\n'),
        about="a cluster file without sections",
    ),
    Case(
        "plan run.toml model.hidden=16384 model.layers=200 model.heads=128 cluster.use=L4",
        "fit",
        code=1,
    ),
    # train
    Case("train recipe.toml", "penstock data build recipe.toml"),
    Case("train run.toml --fork ../up", "up"),
    Case("train run.toml --fork other", "mine", about="no run to fork from"),
    Case("train run.toml --fork a --fresh", "--fresh"),
    Case("train run.toml --vary train.steps", "--vary"),
    Case("train run.toml --vary train.nothing=1,2", "train.nothing"),
    Case("train run.toml --vary train.steps=1,2 --fork x", "--vary"),
    Case("train run.toml dir=s3://bucket/runs", "dir"),
    Case("train run.toml name=done train.learning_rate=0.5", "--fork", about="the run is another"),
    Case("train run.toml name=done model.hidden=32", "--fork", about="the run is another"),
    Case(
        "train run.toml name=done",
        "run.toml",
        change=write(f"{DONE}/run.toml", "name = "),
        about="the run's own file is torn",
    ),
    # ls, status, logs, stop, report, watch
    Case("ls --dir run.toml", "run.toml"),
    *(
        Case(f"{verb} nope", "nope")
        for verb in ("status", "logs", "stop", "report", "watch", "generate", "export")
    ),
    *(Case(f"{verb} run.toml", "mine") for verb in ("status", "report", "stop", "export")),
    Case("status", "missing"),
    Case("report done --html nowhere/deep/page.html", "nowhere"),
    Case("report done --html .", "."),
    Case("logs done --rank 5", "5"),
    Case("logs done --attempt 99", "99"),
    Case("logs done --rank first", "--rank"),
    Case("stop done", "not running"),
    Case("watch --port 99999", "--port"),
    Case("watch done --host 203.0.113.7 --no-open", "203.0.113.7"),
    Case(
        "status done",
        "done",
        change=all_of(remove(f"{DONE}/run.toml"), remove(f"{DONE}/plan.json")),
        about="run.toml and plan.json are gone",
    ),
    # generate, export
    Case("generate done x --tokens 0", "--tokens"),
    Case("generate done x --temperature -1", "--temperature"),
    Case("generate done x --chat", "chat"),
    Case("generate done caf\udce9", "UTF-8", about="letters in another encoding"),
    Case("generate done x", "checkpoint", change=remove(f"{DONE}/checkpoints")),
    Case("evaluate nope --tasks x", "no run 'nope'"),
    Case("evaluate done", "no task is named"),
    Case("evaluate done --tasks x --limit 0", "--limit 0"),
    Case("evaluate done --tasks x --tasks-dir nowhere", "no such folder"),
    Case("export done --dtype int3", "int3"),
    Case("export done --step 77", "77"),
    Case("export done --merged", "merged"),
    Case("export done --out rows.jsonl", "rows.jsonl"),
    Case(
        "export done --out full",
        "full",
        change=write("full/thesis.txt", "years of work"),
        about="the folder holds something else",
    ),
    # checkpoint
    Case("checkpoint list nope", "nope"),
    Case("checkpoint show nope", "nope"),
    Case("checkpoint verify nope", "nope"),
    Case("checkpoint show done 77", "77"),
    Case("checkpoint show done --tier attic", "attic"),
    Case("checkpoint verify done --step 77", "77"),
    Case("checkpoint verify done --tier attic", "attic"),
    Case(
        "checkpoint verify done",
        "damaged",
        code=1,
        change=cut(f"{DONE}/checkpoints/step-00000004/scalars.json", 5),
        about="a file is cut short",
    ),
    Case(
        "checkpoint show done 4",
        "scalars.json",
        code=1,
        change=cut(f"{DONE}/checkpoints/step-00000004/scalars.json", 5),
        about="a file is cut short",
    ),
    Case("checkpoint convert done out.zip", "out.zip"),
    Case("checkpoint convert done out.safetensors --step 77", "77"),
    Case("checkpoint convert done nowhere/out.safetensors", "nowhere"),
    Case("checkpoint convert done x --ranks 0", "--ranks"),
    Case("checkpoint convert rows.jsonl out.pt", "rows.jsonl"),
    Case("checkpoint adopt nope rows.jsonl", "nope"),
    Case("checkpoint adopt done nowhere", "nowhere"),
    Case("checkpoint adopt done runs/done/checkpoints/step-00000002", "itself"),
    # data
    Case("data build nothere.toml", "nothere.toml"),
    Case("data build run.toml", "penstock train run.toml"),
    Case("data build recipe.toml", "recipe.toml", change=write("recipe.toml", "[[source]\n")),
    Case("data build recipe.toml", "source", change=write("recipe.toml", "")),
    Case("data build recipe.toml tokens.vocab=1", "tokens.vocab"),
    Case("data build recipe.toml tokens.vocab=lots", "tokens.vocab"),
    Case("data build recipe.toml clean.preset=shiny", "clean.preset"),
    Case("data build recipe.toml tokens.tokenizer=nowhere.json", "nowhere.json"),
    Case("data build recipe.toml decontaminate.against='[\"nowhere\"]'", "nowhere"),
    Case("data build recipe.toml label.use=magic", "no_score"),
    Case("data build recipe.toml nothing.here=1", "nothing"),
    Case("data build recipe.toml --workers 0", "--workers"),
    Case("data build recipe.toml", "rows.jsonl", change=remove("rows.jsonl")),
    Case("data build recipe.toml", "rows.jsonl", change=write("rows.jsonl", "")),
    Case(
        "data build recipe.toml",
        "text",
        change=edit('path = "rows.jsonl"', 'path = "rows.jsonl"\ntext = "body"', "recipe.toml"),
        about="no row has the field",
    ),
    Case(
        "data build recipe.toml",
        "kind",
        change=edit('"rows.jsonl"', '"rows.jsonl"\nkind = "tape"', "recipe.toml"),
    ),
    Case(
        "data build recipe.toml",
        "response",
        change=edit('"rows.jsonl"', '"rows.jsonl"\nprompt = "a"\nresponse = "a"', "recipe.toml"),
        about="prompt and response are one field",
    ),
    Case("data show nope", "nope"),
    Case("data show ./run.toml", "run.toml"),
    Case("data show tiny --html nowhere/deep/x.html", "nowhere"),
    Case("data verify nope", "nope"),
    Case("data verify tiny@ffff", "tiny@ffff"),
    Case("data sample nope", "nope"),
    Case("data sample tiny -n 0", "-n"),
    Case("data sample tiny --where colour", "colour"),
    Case("data sample tiny --dropped nonsense", "dropped"),
    Case("data diff tiny nope", "nope"),
    Case("data copy nope somewhere", "nope"),
    Case("data copy tiny ftp://host/x", "ftp"),
    # probe, drill, catalog, schema, backtest, and no verb at all
    Case("probe --out rows.jsonl/c.toml", "rows.jsonl"),
    Case("probe --out runs", "runs", about="a folder instead of a file"),
    Case("drill run.toml --faults meteor", "meteor"),
    Case("drill run.toml --steps 3", "--steps"),
    Case("drill nothere.toml", "nothere.toml"),
    Case("drill", "run"),
    Case("catalog fruits", "fruits"),
    Case("catalog accelerators A100-40000", "A100-40000"),
    Case("catalog models nope", "nope"),
    Case("schema --yaml", "--yaml"),
    Case("backtest nothere.csv", "nothere.csv"),
    Case("backtest rows.jsonl", "rows.jsonl"),
    Case("backtest e.csv", "e.csv", change=write("e.csv", "")),
    Case("backtest e.csv", "e.csv", change=write("e.csv", "a,b\n1,2\n")),
    Case("backtest .", ".", about="a folder instead of a file"),
    Case("doctor nothere.toml", "nothere.toml"),
    Case("doctor --on nothere.toml", "nothere.toml"),
    Case("doctor --on run.toml", "model: no such field", about="a run file as the cluster"),
    Case("simulate run.toml guard.spares=9", "guard.spares = 9"),
    Case("simulate run.toml 'failures.repair=-2 h'", "-2 h"),
    Case("simulate run.toml failures.repiar=2", "failures.repiar"),
    Case("simulate run.toml --days=-1", "-1"),
    Case("simulate run.toml --lives 0", "--lives 0"),
    Case("simulate run.toml --vary guard.spares", "guard.spares"),
    Case("simulate run.toml --fleet Mars", "Mars"),
    Case("simulate run.toml --calibrate nothere", "nothere"),
    Case(
        "simulate run.toml --trace t.csv",
        "t.csv:3",
        change=write("t.csv", "start_s,end_s,available\n5,9,1\n0,5,1\n"),
        about="a trace that is not sorted",
    ),
    *(
        Case(
            "rent run.toml --offers o.csv",
            named,
            change=write("o.csv", f"provider,accelerator,usd_per_hour,term\n{row}\n"),
            about=about,
        )
        for row, named, about in (
            ("a,H100 SXM5,-2,spot", "usd_per_hour = -2", "a negative price"),
            ("a,H900,2,spot", "H900", "an unknown accelerator"),
            ("a,H100 SXM5,397,on-demand", "cents", "a price in cents"),
            ("a,H100 SXM5,2,weekly", "weekly", "an unknown term"),
        )
    ),
    Case("rent run.toml --offers nothere.csv", "nothere.csv"),
    Case("rent run.toml --deadline soon", "--deadline"),
    Case("rent run.toml --nodes 1 --accelerators 8", "--accelerators and --nodes"),
    Case(
        "rent run.toml --trace t.csv",
        "t.csv:3",
        change=write("t.csv", "start_s,end_s,available\n5,9,1\n0,5,1\n"),
        about="a trace that is not sorted",
    ),
    Case("trian run.toml", "trian"),
    Case("compare run.toml", "--clusters"),
    Case("compare run.toml --clusters nonsuch", "nonsuch", about="an unknown cluster"),
    Case("compare run.toml --clusters H100,h100", "h100", about="a cluster twice"),
    Case("compare run.toml --clusters 12xH100", "8 or 16", about="half a node"),
    Case("compare run.toml --clusters H100 --deadline soon", "--deadline"),
    Case("compare run.toml --clusters H100 --start 1.12.2026", "--start"),
    *(
        Case(
            f"{verb} run.toml budget.hours_csv=h.csv 'budget.finish_within=2 days'",
            named,
            change=write("h.csv", text),
            about=about,
        )
        for verb, named, text, about in (
            (
                "check",
                "23",
                "hour,usd_per_kwh\n" + "".join(f"{n},0.1\n" for n in range(23)),
                "hours of a day less one",
            ),
            (
                "plan",
                "cents",
                "hour,cents_per_kwh\n" + "".join(f"{n},9\n" for n in range(24)),
                "prices in cents",
            ),
            (
                "train",
                "h.csv",
                "hour,usd_per_kwh\n"
                + "".join(f"{n},{'nan' if n == 9 else 0.1}\n" for n in range(24)),
                "an hour without a price",
            ),
        )
    ),
    Case("train run.toml budget.hours_csv=h.csv", "finish_within"),
    Case(
        "train run.toml budget.hours_csv=nothere.csv 'budget.finish_within=2 days'", "nothere.csv"
    ),
    Case("check run.toml sites.bucket=meet", "sites.name"),
    Case("check run.toml sites.bucket=meet sites.name=a/b", "sites.name"),
    Case("train run.toml sites.bucket=meet sites.name=a", "local_steps"),
    Case("plan run.toml sites.bucket=meet sites.name=a sites.count=1", "sites.count"),
    Case("plan --within 5000cents", "cents"),
    Case("plan --within 0usd --days 10", "--within"),
    Case("plan --within 5000usd --days -1", "--days"),
    Case(
        "plan run.toml cluster.use=H100 cluster.site=us-eest-1",
        "us-east-1",
        about="an unknown site",
    ),
    Case(
        "plan run.toml cluster.use=poor.toml",
        "site.pue",
        change=write("poor.toml", '[accelerator]\nname = "H100 SXM5"\n[site]\npue = 0.9\n'),
        about="a PUE below 1",
    ),
    # values of options
    Case("simulate run.toml --lives 1.5", "--lives 1.5: not a whole number"),
    Case("rent run.toml --top -1", "--top -1: out of range; write 1 or more"),
    Case("generate done x --temperature nan", "--temperature nan"),
    Case("generate done x --seed 99999999999999999999", "--seed 99999999999999999999"),
    Case("checkpoint show done nan", "STEP nan"),
    Case("drill run.toml --steps 999999999999", "--steps 999999999999"),
    Case("drill run.toml --faults ,", "names no fault"),
    Case("rent run.toml --deadline 1e300h", "--deadline '1e300h'"),
    Case("simulate run.toml --by 1e300h", "--by '1e300h'"),
    Case("plan run.toml --deadline 1e300h", "--deadline '1e300h'"),
    Case("plan run.toml --deadline nan", "--deadline"),
    Case("plan run.toml --budget nan", "--budget nan"),
    Case("plan --within nanusd", "--within"),
    Case("plan --within 5000usd --days 1e300", "--days 1e+300"),
    Case("plan --within 5000usd cluster.use=Nonesuch", "Nonesuch"),
    Case("plan run.toml --scale 8..999999999999", "999,999,999,999"),
    Case("compare run.toml --clusters H100 --start 2026-02-30", "--start '2026-02-30'"),
    Case("compare run.toml --clusters 0xH100", "0xH100"),
    Case("data sample tiny --where =", "--where '='"),
    Case("evaluate done --tasks x --samples runs", "--samples", about="a folder, not a file"),
    # empty names
    Case("status ''", "no run ''"),
    Case("ls --dir ''", "--dir ''"),
    Case("data show ''", "'' is no built dataset"),
    Case("catalog weights nope", "`penstock catalog weights` lists all"),
    # tables
    Case(
        "rent run.toml --offers o.csv",
        "'usd_per_hour' is there twice",
        change=write(
            "o.csv",
            "provider,accelerator,usd_per_hour,term,usd_per_hour\na,H100 SXM5,2,spot,3\n",
        ),
        about="a column twice",
    ),
    Case(
        "simulate run.toml --trace t.csv",
        "'start_s' is there twice",
        change=write("t.csv", "start_s,end_s,available,start_s\n0,5,1,2\n"),
        about="a column twice",
    ),
    Case(
        "backtest e.csv",
        "'layers' is there twice",
        change=write("e.csv", "model_name,layers,layers\nx,1,2\n"),
        about="a column twice",
    ),
    Case(
        "rent run.toml --offers o.csv",
        "o.csv",
        change=write("o.csv", b"\xff\xfe\x00"),
        about="no text",
    ),
    Case(
        "simulate run.toml --trace t.csv",
        "t.csv:2",
        change=write("t.csv", "start_s,end_s,available\n0,nan,1\n"),
        about="a time that is no number",
    ),
    # links to themselves, and files in the way
    *(
        Case(f"{verb} {words}", says, change=change, about=about)
        for verb in ("check", "train")
        for words, says, change, about in (
            ("run.toml dir=loop", "loop/mine", link_to_itself("loop"), "`dir` is a link to itself"),
            (
                "own.toml",
                "own.py",
                all_of(remove("own.py"), link_to_itself("own.py")),
                "a link to itself",
            ),
            ("run.toml dir=rows.jsonl", "rows.jsonl/mine", None, "`dir` is a file"),
        )
    ),
    Case("compare run.toml --clusters loop.toml", "loop.toml", change=link_to_itself("loop.toml")),
    Case("checkpoint convert done loop --ranks 2", "loop", change=link_to_itself("loop")),
    Case("export done --out loop", "loop: cannot be written", change=link_to_itself("loop")),
    Case("data build loop.jsonl", "loop.jsonl", change=link_to_itself("loop.jsonl")),
    # kinds of values in a run file
    Case(
        "check run.toml",
        "train.learning_rate = 2026-11-19",
        change=edit("[train]", "[train]\nlearning_rate = 2026-11-19"),
        about="a date",
    ),
    Case("train run.toml", "train.steps = [4]", change=edit("steps = 4", "steps = [4]")),
    Case("check run.toml", "[data]", change=edit("[data]", "[[data]]"), about="a list of sections"),
    Case("train run.toml 'name=a\nb'", "name", about="a name of two lines"),
    # data
    *(
        Case(
            f"{verb} run.toml data.dataset=rows.jsonl",
            "not UTF-8",
            change=write("rows.jsonl", b'{"text": "caf\xe9"}\n'),
            about="no row is UTF-8",
        )
        for verb in ("check", "train")
    ),
    Case("--nonsense", "--nonsense"),
]

# The user's own module, and open models: refused before any rank starts.
OWN: list[tuple[str, str]] = [
    ("model.module=missing.py:build", "missing.py"),
    ("model.module=own.py", "own.py"),
    ("model.module=own.py:biuld", "biuld"),
    ("model.module=own.py:broken", "no weights at home"),
    ("model.module=own.py:number", "not an nn.module"),
    ("model.module=own.py:takes", "takes"),
    ("model.module=own.py:small", "300 tokens"),
    ("train.precision=fp8", "train.precision"),
    ("train.learning_rate=auto", "train.learning_rate"),
    ("layout.tensor=2", "layout"),
    ("data.across_documents=false", "across_documents"),
]


def _own_cases() -> list[Case]:
    return [
        Case(f"{verb} own.toml {words}", says) for words, says in OWN for verb in ("check", "train")
    ]


CASES = [*_field_cases(), *_file_cases(), *_own_cases(), *OTHER]
