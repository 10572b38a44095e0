"""The plans of a set of runs as JSON, and the CPU seconds that each takes: for a change that may
make the search faster and may not change a plan.

    python benchmarks/plan_search.py before; git switch …; python benchmarks/plan_search.py after
    diff -r before after
"""

import argparse
import json
import time
from pathlib import Path

from penstock.errors import PenstockError
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.make import make
from penstock.run.load import load_table

# Model, sequences of a batch, machine, nodes, and what else the run file says.
SET = (
    ("llama-8b", 256, "H100", 1, {}),
    ("llama-70b", 256, "H100", 1, {}),
    ("llama-70b", 256, "H100", 4, {}),
    ("llama-70b", 1152, "H100", 9, {}),
    ("llama-70b", 4096, "H100", 512, {"guard": {"mode": "live"}}),
    ("llama-70b", 4096, "H100", 2048, {}),
    ("llama-405b", 4096, "H100", 2048, {}),
    ("llama-1b", 192, "RTX 4090", 3, {}),
    (
        "llama-8b",
        512,
        "A100 SXM4 80GB",
        8,
        {"train": {"sync": {"local_steps": 50}}, "layout": {"replicate": 8}},
    ),
    ("deepseek-v3", 16384, "H100", 64, {}),
    ("deepseek-v3", 16384, "GB200", 32, {}),
)


def plan_of(preset, sequences, use, nodes, more):
    """Return the plan as text; why there is none, where nothing fits."""
    table = {
        "name": "searched",
        "model": {"preset": preset},
        "data": {"sequence": 4096},
        "cluster": {"use": use, "nodes": nodes},
        **{name: one for name, one in more.items() if name != "train"},
    }
    table["train"] = {"tokens": "1T", "batch_tokens": sequences * 4096, "precision": "bf16"}
    table["train"] |= more.get("train", {})
    run = load_table(table)
    try:
        found = machine_for(run)
        return json.dumps(make(run, found.machine, found.warnings).to_json(), indent=1)
    except PenstockError as error:
        return str(error)


def main(folder):
    """Write every plan, and print its CPU seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    plan_of(*SET[0])  # imports and tables
    for number, one in enumerate(SET):
        start = time.process_time()
        text = plan_of(*one)
        name = f"{number:02}-{one[0]}-{one[2].replace(' ', '-')}-{one[3]}"
        (folder / f"{name}.json").write_text(text)
        print(f"{name:40} {time.process_time() - start:6.2f} CPU s", flush=True)


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    main(asked.parse_args().folder)
