"""Bad run files: each mistake is named with its place, its field, what was found and a way out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.run import fields, toml
from penstock.run.load import load

MODEL = '[model]\npreset = "llama-3m"\n'
SHAPE = "[model]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\n"

# (text, line, field, found, part of the fix)
BAD = {
    "a site that nobody knows": (
        MODEL + '[cluster]\nsite = "us-east-99"\n',
        4,
        "cluster.site",
        '"us-east-99"',
        "write carbon = ... in gCO2e per kWh",
    ),
    "a price below zero": (
        MODEL + "[cluster]\nusd_per_hour = -1\n",
        4,
        "cluster.usd_per_hour",
        "-1",
        "write a number of at least 0",
    ),
    "batch is no quantity": (
        MODEL + '[train]\nbatch_tokens = "12x"\n',
        4,
        "train.batch_tokens",
        '"12x"',
        'not a quantity of tokens; write 524288, "512Ki" or "0.5M"',
    ),
    "tokens below zero": (
        MODEL + "[train]\ntokens = -5\n",
        4,
        "train.tokens",
        "-5",
        "write 524288",
    ),
    "tokens not whole": (MODEL + "[train]\ntokens = 0.5\n", 4, "train.tokens", "0.5", "whole"),
    "no tokens at all": (
        MODEL + "[train]\ntokens = 0\n",
        4,
        "train.tokens",
        "0",
        "write 1 or more",
    ),
    "tokens true": (MODEL + "[train]\ntokens = true\n", 4, "train.tokens", "true", "write 524288"),
    "tokens nan": (MODEL + "[train]\ntokens = nan\n", 4, "train.tokens", "nan", "write 524288"),
    "rate as text": (
        MODEL + '[train]\nlearning_rate = "3e-4"\n',
        4,
        "train.learning_rate",
        '"3e-4"',
        'without quotes, such as 0.1, or "auto"',
    ),
    "rate zero": (
        MODEL + "[train]\nlearning_rate = 0\n",
        4,
        "train.learning_rate",
        "0",
        "write a number above 0",
    ),
    "a place that nothing can be written to": (
        MODEL + '[guard]\ndurable = "ftp://host/runs"\n',
        4,
        "guard.durable",
        '"ftp://host/runs"',
        "write a folder or a URL of s3://",
    ),
    "rate infinite": (
        MODEL + "[train]\nlearning_rate = inf\n",
        4,
        "train.learning_rate",
        "inf",
        "out of range; write",
    ),
    "optimizer unknown": (
        MODEL + '[train]\noptimizer = "adam"\n',
        4,
        "train.optimizer",
        '"adam"',
        """write "adamw" or "muon". Did you mean 'adamw'?""",
    ),
    "precision a number": (
        MODEL + "[train]\nprecision = 16\n",
        4,
        "train.precision",
        "16",
        'write "auto", "fp32", "bf16", "fp8" or "fp64"',
    ),
    "betas one number": (MODEL + "[train]\nbetas = 0.9\n", 4, "train.betas", "0.9", "[0.9, 0.95]"),
    "betas too large": (
        MODEL + "[train]\nbetas = [0.9, 1.0]\n",
        4,
        "train.betas",
        "[0.9, 1.0]",
        "below 1",
    ),
    "momentum of one": (
        MODEL + "[train]\nmuon_momentum = 1.0\n",
        4,
        "train.muon_momentum",
        "1.0",
        "below 1",
    ),
    "weights narrower than the work": (
        MODEL + '[train]\nprecision = "fp32"\nweights = "bf16"\n',
        5,
        "train.weights",
        '"bf16"',
        'write weights = "fp32" or precision = "bf16"',
    ),
    "clip below zero": (MODEL + "[train]\nclip = -1\n", 4, "train.clip", "-1", "at least 0"),
    "flag as text": (
        MODEL + '[train]\ndeterministic = "yes"\n',
        4,
        "train.deterministic",
        '"yes"',
        "write true or false",
    ),
    "final above the peak": (MODEL + "[train]\nfinal = 5\n", 4, "train.final", "5", 'most "100%"'),
    "warmup a duration": (
        MODEL + '[train]\nwarmup = "10 min"\n',
        4,
        "train.warmup",
        '"10 min"',
        'write "5%", 0.05 or "100 steps"',
    ),
    "warmup longer than the run": (
        MODEL + '[train]\nsteps = 10\nwarmup = "100 steps"\n',
        5,
        "train.warmup",
        '"100 steps"',
        "longer than the run of 10 steps; write fewer",
    ),
    "warmup and decay too long": (
        MODEL + '[train]\nschedule = "wsd"\nwarmup = "60%"\ndecay = "50%"\n',
        6,
        "train.decay",
        '"50%"',
        "lower one of them",
    ),
    "decay steps too long": (
        MODEL + '[train]\nsteps = 100\nschedule = "wsd"\ndecay = "99 steps"\n',
        6,
        "train.decay",
        '"99 steps"',
        "do not fit into 100 steps; lower one",
    ),
    "two lengths": (
        MODEL + '[train]\ntokens = "1M"\nsteps = 5\n',
        5,
        "train.steps",
        "5",
        "keep one of tokens, steps",
    ),
    "batch not whole sequences": (
        MODEL + "[data]\nsequence = 256\n[train]\nbatch_tokens = 1000\n",
        6,
        "train.batch_tokens",
        "1000",
        "write 768 or 1024",
    ),
    "batch under a sequence": (
        MODEL + "[data]\nsequence = 256\n[train]\nbatch_tokens = 100\n",
        6,
        "train.batch_tokens",
        "100",
        "write 256",
    ),
    "compression unknown": (
        MODEL + '[train.sync]\ncompress = "int3"\n',
        4,
        "train.sync.compress",
        '"int3"',
        '"int4"',
    ),
    "share of top-k": (
        MODEL + '[train.sync]\nlocal_steps = 9\ncompress = "topk:80%"\n',
        5,
        "train.sync.compress",
        '"topk:80%"',
        '"topk:3%"',
    ),
    "too coarse for gradients": (
        MODEL + '[train.sync]\ncompress = "int2"\n',
        4,
        "train.sync.compress",
        '"int2"',
        "local_steps = 30",
    ),
    "outer optimizer of nothing": (
        MODEL + "[train.sync]\nouter_momentum = 0.5\n",
        4,
        "train.sync.outer_momentum",
        "0.5",
        "remove it",
    ),
    "more parts than steps": (
        MODEL + "[train.sync]\nlocal_steps = 4\nstream = 5\n",
        5,
        "train.sync.stream",
        "5",
        "write 4 or less",
    ),
    "sequence over the context": (
        MODEL + "[data]\nsequence = 4096\n",
        4,
        "data.sequence",
        "4096",
        "model.context = 4096",
    ),
    "dataset a number": (MODEL + "[data]\ndataset = 3\n", 4, "data.dataset", "3", "in quotes"),
    "dataset empty": (MODEL + '[data]\ndataset = ""\n', 4, "data.dataset", '""', "write something"),
    "dataset and mix": (
        MODEL + '[data]\ndataset = "a"\n[[data.mix]]\ndataset = "b"\nweight = 1\n',
        4,
        "data.dataset",
        '"a"',
        "remove one",
    ),
    "mix weight zero": (
        MODEL
        + '[[data.mix]]\ndataset = "b"\nweight = 1\n[[data.mix]]\ndataset = "c"\nweight = 0\n',
        8,
        "data.mix[1].weight",
        "0",
        "above 0",
    ),
    "mix of numbers": (MODEL + "[data]\nmix = [\n1]\n", 5, "data.mix[0]", "1", "[[data.mix]]"),
    "preset unknown": (
        '[model]\npreset = "lama-3m"\n',
        2,
        "model.preset",
        '"lama-3m"',
        "Did you mean 'llama-3m'? `penstock catalog models` lists all",
    ),
    "two models": (
        '[model]\npreset = "llama-3m"\nmodule = "a.py:f"\n',
        3,
        "model.module",
        '"a.py:f"',
        "keep one of preset, module",
    ),
    "module and shape": (
        '[model]\nmodule = "a.py:f"\nlayers = 3\n[train]\nlearning_rate = 1e-3\n',
        3,
        "model.layers",
        "3",
        "remove this field",
    ),
    "module without function": (
        '[model]\nmodule = "a.py"\n[train]\nlearning_rate = 1e-3\n',
        2,
        "model.module",
        '"a.py"',
        'write "my_model.py:build"',
    ),
    "adapter targets a word": (
        '[model]\nfrom = "x"\n[train]\nlearning_rate = 1\n[model.adapter]\ntargets = "ffn"\n',
        6,
        "model.adapter.targets",
        "",
        'write it as ["...", "..."]',
    ),
    "hidden not a multiple": (
        SHAPE.replace("64", "66"),
        3,
        "model.hidden",
        "66",
        "not a multiple of heads = 4; write 64",
    ),
    "kv heads uneven": (SHAPE + "kv_heads = 3\n", 6, "model.kv_heads", "3", "a divisor of 4"),
    "head width odd": (SHAPE + "head_dim = 15\n", 6, "model.head_dim", "15", "even"),
    "no layers": (SHAPE.replace("layers = 2", "layers = 0"), 2, "model.layers", "0", "write 1"),
    "too many layers": (
        SHAPE.replace("layers = 2", 'layers = "1T"'),
        2,
        "model.layers",
        '"1T"',
        "too many units; write 1000000 or fewer",
    ),
    "experts without a choice": (
        SHAPE + "experts = 4\nexperts_active = 8\nexpert_ffn = 8\n",
        7,
        "model.experts_active",
        "8",
        "between 1 and 4",
    ),
    "evaluate without a unit": (
        MODEL + "[evaluate]\nevery = 250\n",
        4,
        "evaluate.every",
        "250",
        'write "250 steps" or "10 min", or "never"',
    ),
    "holdout everything": (
        MODEL + '[evaluate]\nholdout = "100%"\n',
        4,
        "evaluate.holdout",
        '"100%"',
        'less than "100%"',
    ),
    "layout zero": (MODEL + "[layout]\nshard = 0\n", 4, "layout.shard", "0", "write 1 or more"),
    "accelerators some": (
        MODEL + '[cluster]\naccelerators = "some"\n',
        4,
        "cluster.accelerators",
        '"some"',
        'or "all"',
    ),
    "layout does not match": (
        MODEL + "[layout]\nreplicate = 2\nshard = 2\n[cluster]\naccelerators = 2\n",
        3,
        "layout",
        "",
        "= 4, but there are 2 accelerators; make them equal",
    ),
    "replica does not divide": (
        MODEL + "[layout]\nshard = 4\n[cluster]\naccelerators = 6\n",
        3,
        "layout",
        "",
        "write a divisor of 6",
    ),
    "timeout without a unit": (MODEL + "[guard]\ntimeout = 5\n", 4, "guard.timeout", "5", '"90 s"'),
    "timeout of nothing": (
        MODEL + '[guard]\ntimeout = "0 s"\n',
        4,
        "guard.timeout",
        '"0 s"',
        "2 min",
    ),
    "checkpoint often": (
        MODEL + '[guard]\ncheckpoint = "often"\n',
        4,
        "guard.checkpoint",
        '"often"',
        '"250 steps" or "10 min", or "auto"',
    ),
    "budget below zero": (MODEL + "[budget]\nusd = -1\n", 4, "budget.usd", "-1", "above 0"),
    "name climbs": ('name = "../up"\n' + MODEL, 1, "name", '"../up"', "write letters"),
    "name hides": ('name = ".x"\n' + MODEL, 1, "name", '".x"', "starting with a letter"),
    "name too long": (f'name = "{"x" * 101}"\n' + MODEL, 1, "name", '"xxx', "at most 100"),
    "name a number": ("name = 7\n" + MODEL, 1, "name", "7", "in quotes"),
    "name breaks the line": ('name = "a\\nb"\n' + MODEL, 1, "name", '"a\\nb"', "write plain text"),
    "section a value": ("train = 4\n" + MODEL, 1, "train", "4", "write [train] on a line"),
    "section a list": (
        MODEL + "[[log]]\nwandb = 'x'\n",
        3,
        "log",
        "[{wandb",
        "write [log] on a line",
    ),
    "section below a value": (
        MODEL + '[train]\nsync = "bf16"\n',
        4,
        "train.sync",
        '"bf16"',
        "write [train.sync] on a line",
    ),
    "date": (
        MODEL + "[train]\nseed = 2026-01-01\n",
        4,
        "train.seed",
        "2026-01-01",
        "write 0 or 42",
    ),
    "dotted key": ("model.preset = 'llama-3m'\ntrain.seed = -1\n", 2, "train.seed", "-1", "write"),
    "inline table": (
        "model = {preset = 'llama-3m', layers = 'x'}\n",
        1,
        "model.layers",
        '"x"',
        "write 4",
    ),
    "long value is cut": (
        MODEL + f'[train]\nwarmup = "{"y" * 500}"\n',
        4,
        "train.warmup",
        "yyy...",
        "write",
    ),
}


def error_of(tmp_path, text, overrides=()):
    file = tmp_path / "run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PenstockError) as error:
        load(file, overrides)
    return str(error.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_says_where_what_and_how_to_fix_it(tmp_path, kind):
    text, line, field, found, fix = BAD[kind]
    message = error_of(tmp_path, text)
    assert message.startswith(f"run.toml:{line}: {field}{' = ' if found else ': '}"), message
    assert found in message
    assert fix in message
    assert "\n" not in message
    assert "Input should" not in message
    assert "Value error" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("key", "section", "advice"),
    [
        ("lerning_rate = 1", "[train]", "Did you mean 'learning_rate'?"),
        ("tokens = 1", "[data]", "'tokens' belongs in [train] or in [evaluate]"),
        ("preset = 1", "[train]", "'preset' belongs in [model]"),
        ("compress = 1", "[train]", "'compress' belongs in [train.sync]"),
        ("name = 1", "[data]", "'name' belongs at the top of the file or in [sites]"),
        ("lr = 1", "[train]", "Write train.learning_rate instead"),
        ("batch_size = 1", "[train]", "Write train.batch_tokens (tokens, not samples) instead"),
        ("lerning_rate = 1", "[budget]", "Did you mean 'learning_rate' in [train]?"),
        (
            "zzzz = 1",
            "[budget]",
            "In [budget] there are usd, hours, hours_csv, finish_within, hours_by, hours_paused, "
            "hours_zone",
        ),
        (
            '"odd key" = 1',
            "[budget]",
            "In [budget] there are usd, hours, hours_csv, finish_within, hours_by, hours_paused, "
            "hours_zone",
        ),
        ("from_ = 1", "[cluster]", "Did you mean 'from' in [model]?"),
    ],
)
def test_an_unknown_field_gets_the_nearest_one(tmp_path, key, section, advice):
    message = error_of(tmp_path, f"{MODEL}{section}\n{key}\n")
    name = key.partition(" =")[0]
    assert message == f"run.toml:4: {section[1:-1]}.{name}: no such field. {advice}"


def test_an_unknown_section_gets_the_nearest_one(tmp_path):
    assert error_of(tmp_path, MODEL + "[trian]\nx = 1\n") == (
        "run.toml:3: trian: no such field. Did you mean 'train'?"
    )


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(tmp_path):
    text = (
        'name = ".."\n[train]\nbatch_tokens = "12x"\nlerning_rate = 1\n'
        "[model]\nlayers = 2\nhidden = 66\nheads = 4\nffn = 8\n[log]\nwandb = 1\n"
    )
    lines = error_of(tmp_path, text, ["guard.keep=0", "nonsense"]).split("\n")
    places = [line.split(" ")[0] for line in lines]
    assert places == [
        *["run.toml:1:", "run.toml:3:", "run.toml:4:", "run.toml:7:", "run.toml:11:"],
        *["command", "command"],
    ]
    assert "guard.keep = 0" in lines[5]
    assert "'nonsense'" in lines[6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run.toml: the file is empty; `penstock init` writes one that works"),
        (
            "# only a comment\n",
            "run.toml: the file is empty; `penstock init` writes one that works",
        ),
        ('name = "x"\n', 'run.toml: model: missing; write [model] with preset = "llama-3m"'),
        ("[model]\n", 'run.toml:1: model: names no model; write preset = "llama-3m" or a shape'),
        (
            "[model]\nlayers = 2\nheads = 2\n",
            "run.toml:1: model: an own shape also needs hidden, ffn",
        ),
        (
            "[model]\nlayers = 2\nheads = 2\nhidden=8\nexperts = 4",
            "run.toml:1: model: an own shape also needs experts_active, expert_ffn",
        ),
        (
            '[model]\nmodule = "a.py:f"\n',
            'run.toml: train.learning_rate: "auto" needs the width of the model',
        ),
        ("a = \n", "run.toml:1:5: not TOML: invalid value in `a =`; write it as KEY"),
        (
            "[model]\npreset = llama-3m\n",
            "run.toml:2:10: not TOML: invalid value in `preset = llama-3m`; "
            'text goes in quotes: preset = "llama-3m"',
        ),
        (
            "a = 1\na = 2\n",
            "run.toml:2:6: not TOML: cannot overwrite a value in `a = 2`; "
            "a field or section stands once; remove one",
        ),
        (
            "[a]\n[a]\n",
            "run.toml:2:3: not TOML: cannot declare ('a',) twice in `[a]`; a field or sec",
        ),
        ("[model]\npreset\n", "run.toml:2:7: not TOML: expected '=' after a key"),
        ('a = """x\n', "run.toml:1:9: not TOML: "),
        ("[model\n", "run.toml:1:7: not TOML: "),
        (b"a = 1\nb = '\xff'\n", "run.toml:2: byte 0xff is not UTF-8 text; save the file as UTF-8"),
        ("a = 1\n".encode("utf-16"), "run.toml:1: byte 0xff is not UTF-8 text"),
        ("a = " + "[" * 100_000, "run.toml: nested too deeply"),
        ("a = " + "{a = " * 100_000, "run.toml: nested too deeply"),
        (".".join("a" * 50_000) + " = 1", "run.toml: a key has more than 16 parts; that is too"),
        ("[" + ".".join("a" * 50_000) + "]", "run.toml: a key has more than 16 parts"),
        (" . ".join(["'a'"] * 50_000) + " = 1", "run.toml: a key has more than 16 parts"),
        ("\n".join(f"k{i} = 1" for i in range(20_000)), "run.toml: it has more than 10,000 keys"),
        ("\n".join(f"[k{i}]" for i in range(20_000)), "run.toml: it has more than 10,000 keys"),
        ("a = " + '"""\\' * 100_000, "run.toml:1:"),
        ("a = b" + " " * 500_000 + '"', "run.toml:1:5: not TOML: invalid value"),
        ("a = " + "1" * 5000, "run.toml:1"),
        ("#" * (2**20 + 1), "run.toml: not a run file: special or over 1 MiB"),
        (
            '[model]\npreset = "llama-3m"\n[[data.mix]]\ndataset = "a"\n',
            "run.toml:3: data.mix[0].weight: missing; write weight = ...",
        ),
        (
            '[model]\npreset = "llama-3m"\n[data]\nmix = "a"\n',
            "run.toml:4: data.mix: not a list; write each part under its own [[data.mix]]",
        ),
    ],
)
def test_a_file_that_is_no_run_file(tmp_path, text, message):
    assert error_of(tmp_path, text).startswith(message)


def test_no_file_a_folder_and_an_unreadable_path(tmp_path):
    for path, words in [
        (tmp_path / "absent.toml", "no such file; `penstock init --out"),
        (tmp_path, "a folder, not a run file"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
        ("/dev/null", "not a run file: special"),
    ]:
        with pytest.raises(PenstockError, match="; ") as error:
            load(path)
        assert str(path) in str(error.value)
        assert words in str(error.value)


junk = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(fields.RUN.fields), junk, min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_whatever_stands_in_a_field_the_answer_is_a_run_or_our_own_words(tmp_path_factory, values):
    table = {"model": {"preset": "llama-3m"}}
    for field, value in sorted(values.items(), key=lambda item: len(item[0].path)):
        inner = table
        for name in field.path[:-1]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[field.path[-1]] = value
    file = tmp_path_factory.getbasetemp() / "junk.toml"
    file.write_text("\n".join(toml.format_document(table)), encoding="utf-8")
    try:
        load(file)
    except PenstockError as error:
        for line in str(error).split("\n"):
            assert line.startswith(f"{file}:")
            assert "Input should" not in line
            assert "Value error" not in line
            assert (
                "write" in line or "Did you mean" in line or " there are " in line or "; " in line
            )
