"""This machine measured: a hardware profile by the engine's own operations, and the cost model fitted to real steps."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.bench import TimedRequests
from autotune.calibrate import Calibration, StepRecord, calibrate, fastest, records_of
from autotune.costmodel import CostModel
from autotune.environment import cpu_model, memory_gib, packs_weights, usable_cores
from autotune.overheads import ENGINE_CPU
from autotune.prepared import PreparedPrompt
from autotune.session import Session, deployment_prompts, full_space
from engine.protocol import Generated
from space.deployment import Deployment, find_deployment
from space.errors import InputError
from space.genome import Genome
from space.hardware import Figure, HardwareProfile, RowPoint, profile_toml
from space.knobs import KnobValue
from space.shapes import ModelShape, find_drafter, find_model

STAND_IN = "cpu-smollm2"
STAND_IN_TARGET, STAND_IN_DRAFTER = "smollm2-135m", "dflash-smollm2-135m"
_TIMEOUT = 120.0
_REPEATS = 3
"""Times that each answer is decoded, with the others in between: a step counts with its fastest."""

_LOGGED: tuple[dict[str, KnobValue], ...] = (
    {"drafter": "none"},
    {"drafter": "ngram", "ngram_min": 2},
    {"drafter": "suffix", "draft_length": 16},
    {"drafter": "dflash", "draft_length": 7},
)
"""Settings whose steps differ in what the model must tell apart: rows, context, and who drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What `doctor --measure` found, and where it wrote it."""

    profile: HardwareProfile
    profile_path: Path
    calibration: Calibration | None


def measured_profile_path(home: Path) -> Path:
    """Where this machine's profile lies in the home folder."""
    return home / "hardware" / "measured-cpu.toml"


def engine_layers(shape: ModelShape) -> list[tuple[int, int]]:
    """[out, in] of the engine's linear layers in the order of a step: q, k and v as one, gate and up as one."""
    attention = shape.heads * shape.head_dim
    layer = [
        (attention + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        (shape.hidden, attention),
        (2 * shape.ffn, shape.hidden),
        (shape.hidden, shape.ffn),
    ]
    return [*layer * shape.layers, (shape.vocab, shape.hidden)]


def measure_profile() -> HardwareProfile:
    """Measures this processor with the linear layers of the stand-in's shape; takes about ten seconds."""
    from engine.probe import probe  # late: torch

    path = "packed" if packs_weights() else "plain"
    found = probe(engine_layers(find_model(STAND_IN_TARGET)), threads=usable_cores(), linear_path=path)
    how = f"measured by run.py doctor --measure on {cpu_model()}, {usable_cores()} threads, {path} weights"
    return HardwareProfile(
        name="measured-cpu",
        title=cpu_model(),
        kind="measured",
        read_bandwidth=Figure(value=found.read_bandwidth, source=f"fp32 sum over 256 MiB, {how}"),
        matrix_rate=Figure(value=found.matrix_rate, source=f"bf16 linear layers at their best row count, {how}"),
        memory=Figure(value=memory_gib() * 2**30, source="physical memory"),
        launch=Figure(value=found.operator_seconds, source=f"one RMS norm of one row, {how}"),
        host_gap=Figure(value=found.operator_seconds, source="the processor is its own host: one operator"),
        rows=tuple(RowPoint(rows=rows, bytes_per_second=rate) for rows, rate in found.rows),
    )


def step_logs(deployment: Deployment, home: Path, say: Callable[[str], None]) -> list[StepRecord]:
    """Decodes a few prompts for real under settings that differ, three times each, and returns their steps."""
    space = full_space(deployment)
    with Session(deployment, home, say) as session:
        _, split = deployment_prompts(deployment)
        prompts = session.prepare(split.search)
        requests = session.requests()
        genomes = [Genome.complete(space, knobs) for knobs in _LOGGED]
        for genome in genomes:
            requests.warm_up(genome, prompts[0], _TIMEOUT)
        asked = [(genome, prompt) for genome in genomes for prompt in prompts]
        rounds = [[_answer(requests, *one) for one in asked] for _ in range(_REPEATS)]
    records: list[StepRecord] = []
    for number, ((genome, prompt), repeats) in enumerate(zip(asked, zip(*rounds, strict=True), strict=True)):
        neural = genome.knobs["drafter"] == "dflash"
        records += records_of(number, len(prompt.tokens), fastest(repeats), neural=neural)
    return records


def _answer(requests: TimedRequests, genome: Genome, prompt: PreparedPrompt) -> Generated:
    return requests.candidate(genome, prompt, 0, _TIMEOUT).answer


def stand_in_model(profile: HardwareProfile) -> CostModel:
    """The cost model of the stand-in pair on a measured processor."""
    return CostModel(
        hardware=profile,
        target=find_model(STAND_IN_TARGET),
        drafter=find_drafter(STAND_IN_DRAFTER),
        system=ENGINE_CPU,
    )


def measure_machine(home: Path, say: Callable[[str], None], *, with_model: bool) -> Measured:
    """Measures, fits where the stand-in's weights are there, and writes both files into the home folder."""
    say("measuring read bandwidth, linear layers and operators: about ten seconds")
    profile = measure_profile()
    path = measured_profile_path(home)
    calibration = None
    if with_model:
        say("decoding prompts to fit the cost model to real steps: about a minute and a half")
        calibration = calibrate(stand_in_model(profile), step_logs(find_deployment(STAND_IN), home, say))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(profile_toml(profile), encoding="utf-8")
        if calibration is not None:
            text = json.dumps(asdict(calibration), indent=2)
            path.with_name("calibration.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}\nSet SPECPILOT_HOME to another folder.") from error
    return Measured(profile=profile, profile_path=path, calibration=calibration)
