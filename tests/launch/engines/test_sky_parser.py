"""The SkyPilot task, by SkyPilot's own parser, in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from engine_runs import job_of
from penstock.launch.engines.sky import Sky

FOLDER = Path(os.environ.get("PENSTOCK_SKY", Path(__file__).parents[3] / ".sky"))
PYTHON = FOLDER / "bin" / "python"
pytestmark = [
    pytest.mark.sky,
    pytest.mark.skipif(not PYTHON.exists(), reason="no SkyPilot: make test-sky"),
]
PARSE = """
import json, sys
import sky
answers = []
for name in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(name)
        task.validate()
        answers.append(task.to_yaml_config())
    except Exception as error:
        answers.append(str(error))
print("ANSWER", json.dumps(answers, default=str))
"""
# The parser looks up accelerators and machines in catalogs, which it would fetch from the web.
CATALOGS = {
    "common/accelerators.csv": 'AcceleratorName,Clouds\nH100,"AWS, GCP"\n',
    "aws/vms.csv": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,"
    "SpotPrice,Region,AvailabilityZone,Arch\n"
    'p5.48xlarge,H100,8,192,2048,"{}",55.0,20.0,us-east-1,us-east-1a,x86_64\n',
}
SECTION = "cluster.sky"
TASKS = {
    "spot": ["cluster.nodes=4", f"{SECTION}.disk=500"],
    "secrets": [f'{SECTION}.secrets=["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]'],
    "image": [f"{SECTION}.image=docker:registry.example/penstock:1", f"{SECTION}.setup=[]"],
    "plain": [f"{SECTION}.spot=false", f"{SECTION}.infra=null", "name=9.A_name"],
}


@pytest.fixture(scope="module")
def sky_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sky")
    for name, content in CATALOGS.items():
        path = home / ".sky" / "catalogs" / "v8" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return home


def parse(home: Path, *files: Path) -> list[object]:
    """Return the tasks as SkyPilot writes them back, or what it says against them."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [PYTHON, "-c", PARSE, *files], env=env, capture_output=True, text=True, timeout=240
    )
    assert "ANSWER" in done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.partition("ANSWER ")[2])


def test_the_parser_takes_every_task_and_refuses_a_wrong_one(sky_home, tmp_path):
    files = []
    for name, overrides in TASKS.items():
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(Sky().text(job_of("sky", *overrides)))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(files[0].read_text().replace("num_nodes:", "nodes_num:"))
    *parsed, refused = parse(sky_home, *files, wrong)
    spot, secrets, image, plain = parsed
    assert isinstance(refused, str)
    assert "nodes_num" in refused
    assert spot["num_nodes"] == 4
    assert spot["resources"]["use_spot"] is True
    assert spot["resources"]["accelerators"] == {"H100": 8}
    assert spot["resources"]["disk_size"] == 500
    assert spot["resources"]["job_recovery"]["max_restarts_on_errors"] == 3
    assert spot["run"] == yaml.safe_load(files[0].read_text())["run"]
    assert secrets["secrets"] == ["secrets:AWS_ACCESS_KEY_ID", "secrets:AWS_SECRET_ACCESS_KEY"]
    assert image["resources"]["image_id"] == {"us-east-1": "docker:registry.example/penstock:1"}
    assert plain["name"].startswith("run-9-a-name-")
    assert plain["resources"]["use_spot"] is False
