"""How fast bf16 is here, and which format runs and plans take because of it."""

from dataclasses import replace

import pytest

from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepare import prepare
from penstock.meter import devices, precision
from penstock.meter.precision import Bf16Speed
from penstock.meter.probe_list import items
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.hardware.precision import settled, speed_of
from penstock.plan.make import make
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load

FAST, SLOW = Bf16Speed(2.0, "this CPU", "measured"), Bf16Speed(0.018, "this CPU", "measured")


class Heard(Listener):
    """A display that keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, words: str) -> None:
        self.warnings.append(words)


@pytest.fixture
def prepared(run_file, monkeypatch):
    """prepared(speed, …): what a launch settles on a machine with that speed of bf16."""

    def settle(speed: Bf16Speed, **fields):
        monkeypatch.setattr("penstock.launch.prepare.prepare.measure", lambda machine: speed)
        heard = Heard()
        run = load(run_file(**fields))
        return prepare(run, LaunchRecord(), devices.find(), heard), heard.warnings

    return settle


def test_this_machine_is_measured_in_both_formats():
    import torch

    cpu = devices.Devices("cpu", 1, "", "", 0)  # also where there is a GPU
    found = precision.measure(cpu)
    assert found.speedup
    # What torch says it has decides which side of 1 the measurement is on.
    assert found.fast == torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize(("speed", "chosen"), [(FAST, "bf16"), (SLOW, "fp32")])
def test_a_launch_takes_what_the_machine_does_fast_and_says_why(prepared, speed, chosen):
    found, warnings = prepared(speed, **{"train.precision": "auto"})
    assert found.run.train.precision == chosen
    _, plan = found.plan_launch(LaunchRecord())
    assert plan["precision_why"] == speed.words
    assert plan["predicted"]["layout"]
    assert not warnings


def test_a_given_precision_that_is_slow_here_is_warned_of_before_the_run(prepared):
    found, warnings = prepared(SLOW, **{"train.precision": "bf16"})
    assert found.run.train.precision == "bf16"
    assert warnings == [
        'train.precision = "bf16": bf16 matmuls are 56 × slower than fp32 on this CPU (measured); '
        '"fp32" is faster'
    ]
    assert prepared(SLOW, **{"train.precision": "fp32"})[1] == []


def test_a_cpu_without_bf16_units_is_known_by_its_flags(monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPUINFO", info)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    info.write_text("flags\t\t: fpu sse avx2 fma\n")
    assert not precision.estimate("EPYC").fast
    info.write_text("flags\t\t: fpu sse avx2 avx512_bf16\n")
    assert precision.estimate("EPYC").fast
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not precision.estimate("EPYC").fast
    info.write_text("Features\t: fp asimd bf16 i8mm\n")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    assert precision.estimate("Graviton").fast
    info.unlink()
    assert not precision.estimate("").fast


@pytest.mark.parametrize(
    ("use", "chosen"), [("H100", "bf16"), ("V100 SXM2 32GB", "fp32"), ("RTX PRO 6000", "bf16")]
)
def test_a_plan_of_another_machine_goes_by_its_rates(run_file, use, chosen):
    run = load(run_file(**{"cluster.use": use, "train.precision": "auto"}))
    machine = machine_for(run).machine
    run, notes = settled(run, machine)
    assert run.train.precision == chosen
    assert notes[0].startswith(f'train.precision = "auto" is {chosen}: ')
    assert "catalog" in notes[0]


def test_a_plan_says_what_auto_means_and_that_a_given_format_is_slow(run_file):
    auto = load(run_file(**{"cluster.use": "H100", "train.precision": "auto"}))
    machine = machine_for(auto).machine
    plan = make(auto, machine)
    assert plan.job.precision == "bf16"
    assert any('"auto" is bf16' in note for note in plan.warnings)
    wide = load(run_file(**{"cluster.use": "H100", "train.precision": "fp32"}))
    plan = make(wide, machine)
    assert plan.job.precision == "fp32"
    assert any("15 × faster than fp32 on H100" in note for note in plan.warnings)


def test_a_probed_machine_goes_by_its_readings(run_file):
    run = load(run_file(**{"cluster.use": "H100"}))
    machine = machine_for(run).machine
    slow = replace(machine, matmul_flops={"fp32": 60e9, "bf16": 1.1e9})
    assert not speed_of(slow).fast


def test_a_probe_takes_few_readings_of_a_format_that_is_slow_here():
    every, fewer = items("cpu", 2), items("cpu", 2, slow=("bf16",))
    narrow = [item for item in fewer if item.precision == "bf16"]
    assert {item.table for item in narrow} == {"matmul_s"}
    assert max(side for item in narrow for side in item.at) <= 256
    assert [i for i in every if i.precision != "bf16"] == [
        i for i in fewer if i.precision != "bf16"
    ]
