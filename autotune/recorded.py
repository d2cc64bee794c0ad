"""Evaluations on file: a recorder around a real evaluator, and an evaluator that replays without any model.

A recording holds JSON lines of {genome, stage, evaluation}. Where a genome was evaluated twice, the later line counts.
"""

from dataclasses import asdict, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from archive.base import Attempt, Evaluation
from autotune.base import Evaluator
from space.canonical import canonical_json
from space.errors import InputError


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    genome: str
    stage: str
    evaluation: Evaluation


class ReplayClock:
    """A clock that stands still until recorded time is charged to it."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds charged so far."""
        return self._now

    def charge(self, seconds: float) -> None:
        """Moves the clock on."""
        self._now += seconds


class RecordingEvaluator:
    """Passes evaluations through and appends each to a file."""

    def __init__(self, inner: Evaluator, path: Path) -> None:
        """Records what `inner` answers to `path`; lines that are there already are kept."""
        self._inner = inner
        self._path = path

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Evaluates by the inner evaluator; InputError when the recording cannot be written."""
        evaluation = self._inner.evaluate(attempt, stage)
        line = canonical_json({"genome": attempt.genome.id, "stage": stage, "evaluation": asdict(evaluation)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise InputError(f"cannot write the recording {self._path}: {error.strerror}") from error
        return evaluation


class ReplayEvaluator:
    """Answers from a recording; the recorded seconds are charged to the clock that the budget reads."""

    def __init__(self, path: Path, clock: ReplayClock) -> None:
        """Reads the recording; InputError names the file and the line that cannot be used."""
        self._path = path
        self._clock = clock
        self._known: dict[tuple[str, str], Evaluation] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the recording {path}: {error}") from error
        for number, text in enumerate(lines, 1):
            try:
                line = _Line.model_validate_json(text)
            except ValidationError as error:
                problem = error.errors()[0]
                where = ".".join(str(part) for part in problem["loc"])
                raise InputError(f"{path} line {number}: {where or 'line'}: {problem['msg'].lower()}") from error
            self._known[line.genome, line.stage] = line.evaluation

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Returns the recorded evaluation under the attempt's number; InputError for a genome without one."""
        found = self._known.get((attempt.genome.id, stage))
        if found is None:
            raise InputError(
                f"{self._path} has no {stage} evaluation of genome {attempt.genome.id}: {attempt.genome.json}\n"
                "Replay with the seed, space and --max-evals of the recorded run, or record again."
            )
        self._clock.charge(found.seconds)
        return replace(found, attempt=attempt.number, run_id=attempt.run_id)
