"""Records to table rows and back. What goes in comes out equal."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from archive.base import Attempt, Basis, Descriptor, Environment, Evaluation, Forced, RunRecord, Sample, Score
from space.canonical import canonical_json
from space.errors import ArchiveError
from space.genome import Genome
from space.outcome import Outcome
from space.patch import Patch

SAMPLE_COLUMNS = tuple(f.name for f in fields(Sample))
SCORE_COLUMNS = tuple(f.name for f in fields(Score))
DESCRIPTOR_COLUMNS = tuple(f.name for f in fields(Descriptor))
FORCED_COLUMNS = ("forced_tokens", "forced_exact", "forced_near_ties", "first_mismatch")

RUN_COLUMNS = ("id", "deployment_name", "deployment", "space", "prompts", "seed", "environment", "basis")
ATTEMPT_COLUMNS = ("run_id", "number", "genome_id", "genome", "parents", "operator", "rng_state")
EVALUATION_COLUMNS = (
    *("attempt_id", "stage", "outcome", "reason", "seconds"),
    *FORCED_COLUMNS,
    *SCORE_COLUMNS,
    *DESCRIPTOR_COLUMNS,
    "sandbox",
)
PATCH_COLUMNS = ("id", "base", "diff")


def insert(table: str, columns: Sequence[str]) -> str:
    """The INSERT statement for these columns; table and columns are this module's own names, never input."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def run_row(run: RunRecord) -> tuple[Any, ...]:
    """Values in the order of RUN_COLUMNS."""
    environment = canonical_json(asdict(run.environment))
    return (run.id, run.deployment_name, run.deployment, run.space, run.prompts, run.seed, environment, run.basis.value)


def read_run(row: sqlite3.Row) -> RunRecord:
    """The record of a row of table run."""
    environment = Environment(**json.loads(row["environment"]))
    plain = {name: row[name] for name in RUN_COLUMNS if name not in ("environment", "basis")}
    return RunRecord(**plain, environment=environment, basis=Basis(row["basis"]))


def attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    """Values in the order of ATTEMPT_COLUMNS."""
    parents = canonical_json(list(attempt.parents))
    genome = attempt.genome
    return (attempt.run_id, attempt.number, genome.id, genome.json, parents, attempt.operator, attempt.rng_state)


def patch_row(patch: Patch) -> tuple[Any, ...]:
    """Values in the order of PATCH_COLUMNS."""
    return (patch.id, patch.base, patch.diff)


def patch_ids(row: sqlite3.Row) -> tuple[str, ...]:
    """The content addresses of the patches of a row of table attempt, in order."""
    return tuple(json.loads(row["genome"]).get("patches", ()))


def read_attempt(row: sqlite3.Row, patches: Sequence[Patch] = ()) -> Attempt:
    """The record of a row of table attempt, with the patches that `patch_ids` names.

    ArchiveError when the genome is not the one that its id names.
    """
    genome = Genome.of(json.loads(row["genome"])["knobs"]).patched(patches)
    if genome.id != row["genome_id"]:
        raise ArchiveError(
            f"attempt {row['run_id']}/{row['number']}: the stored knobs or patches are not those of genome "
            f"{row['genome_id']}\n"
            "The archive was edited or is damaged; move it away to start a new one."
        )
    return Attempt(
        number=row["number"],
        run_id=row["run_id"],
        genome=genome,
        parents=tuple(json.loads(row["parents"])),
        operator=row["operator"],
        rng_state=row["rng_state"],
    )


def evaluation_row(attempt_id: int, evaluation: Evaluation) -> tuple[Any, ...]:
    """Values in the order of EVALUATION_COLUMNS; parts that are absent become NULLs."""
    own = (attempt_id, evaluation.stage, evaluation.outcome.value, evaluation.reason, evaluation.seconds)
    parts = (
        astuple(evaluation.forced) if evaluation.forced else (None,) * len(FORCED_COLUMNS),
        astuple(evaluation.score) if evaluation.score else (None,) * len(SCORE_COLUMNS),
        astuple(evaluation.descriptor) if evaluation.descriptor else (None,) * len(DESCRIPTOR_COLUMNS),
    )
    return (*own, *parts[0], *parts[1], *parts[2], evaluation.sandbox)


def sample_row(attempt_id: int, sample: Sample) -> tuple[Any, ...]:
    """Values in the order of attempt_id and SAMPLE_COLUMNS."""
    return (attempt_id, *astuple(sample))


def read_sample(row: sqlite3.Row) -> Sample:
    """The record of a row of table sample."""
    return Sample(**{name: row[name] for name in SAMPLE_COLUMNS})


def read_evaluation(row: sqlite3.Row, samples: Sequence[Sample]) -> Evaluation:
    """The record of a joined row of attempt and evaluation, with its samples."""
    forced = score = descriptor = None
    if row["forced_tokens"] is not None:
        forced = Forced(
            tokens=row["forced_tokens"],
            exact=row["forced_exact"],
            near_ties=row["forced_near_ties"],
            first_mismatch=row["first_mismatch"],
        )
    if row["ratio_ar"] is not None:
        score = Score(**{name: row[name] for name in SCORE_COLUMNS})
    if row["regime"] is not None:
        descriptor = Descriptor(**{name: row[name] for name in DESCRIPTOR_COLUMNS})
    return Evaluation(
        attempt=row["number"],
        run_id=row["run_id"],
        stage=row["stage"],
        outcome=Outcome(row["outcome"]),
        reason=row["reason"],
        seconds=row["seconds"],
        forced=forced,
        score=score,
        descriptor=descriptor,
        sandbox=row["sandbox"],
        samples=tuple(samples),
    )
