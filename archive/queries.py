"""Read models of the command line: what `archive list`, `show` and `top` print. Nothing is printed here."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from archive import rows
from archive.base import Attempt, Basis, Environment, Evaluation
from archive.store import Archive
from archive.summary import RoleSummary, summarise
from space.errors import ArchiveError, nearest
from space.genome import Genome
from space.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of `archive list`. Best ratios are to AR of the same run, of its basis; None before the first ok one."""

    id: str
    deployment_name: str
    started: str
    seed: int
    environment: Environment
    seconds: float
    finished: int
    ok: int
    best_ratio_ar: float | None
    confirmed_ratio_ar: float | None
    basis: Basis = Basis.MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """`archive show RUN`: the summary, what was searched (canonical JSON), and how the attempts ended."""

    summary: RunSummary
    deployment: str
    space: str
    outcomes: dict[Outcome, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDetail:
    """`archive show RUN/NUMBER`: one attempt. `state` is in_flight, done or stale; done has an evaluation."""

    attempt: Attempt
    deployment_name: str
    state: str
    started: str
    evaluation: Evaluation | None
    roles: tuple[RoleSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenomeDetail:
    """`archive show GENOME`: the genome and its attempts in all runs, oldest first."""

    genome: Genome
    attempts: tuple[AttemptDetail, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntry:
    """One line of `archive top`: a genome of a run, by its confirmation where there is one, else by its search."""

    deployment_name: str
    run_id: str
    number: int
    genome: Genome
    evaluation: Evaluation
    environment: Environment


_RUNS = """
    SELECT r.*,
      coalesce(sum(e.seconds), 0.0) AS spent,
      count(e.attempt_id) AS finished,
      coalesce(sum(e.outcome = 'ok'), 0) AS ok,
      max(CASE WHEN e.stage = 'search' THEN e.ratio_ar END) AS best,
      max(CASE WHEN e.stage = 'confirm' THEN e.ratio_ar END) AS confirmed
    FROM run r LEFT JOIN attempt a ON a.run_id = r.id LEFT JOIN evaluation e ON e.attempt_id = a.id
    {where} GROUP BY r.seq ORDER BY r.seq DESC"""

# One row for each genome of a run: confirmations first, then the earliest attempt.
_TOP = """
    SELECT * FROM (
      SELECT a.run_id, a.number, r.seq, coalesce(e.ratio_ar, 0) AS ratio,
        row_number() OVER (PARTITION BY a.run_id, a.genome_id ORDER BY e.stage = 'search', a.number) AS place
      FROM evaluation e JOIN attempt a ON a.id = e.attempt_id JOIN run r ON r.id = a.run_id
      WHERE e.outcome = 'ok' AND r.basis = ?3 AND (?1 IS NULL OR r.deployment_name = ?1))
    WHERE place = 1 ORDER BY ratio DESC, seq, number LIMIT ?2"""


def _run_summary(row: sqlite3.Row) -> RunSummary:
    run = rows.read_run(row)
    return RunSummary(
        id=run.id,
        deployment_name=run.deployment_name,
        started=row["started"],
        seed=run.seed,
        environment=run.environment,
        seconds=row["spent"],
        finished=row["finished"],
        ok=row["ok"],
        best_ratio_ar=row["best"],
        confirmed_ratio_ar=row["confirmed"],
        basis=run.basis,
    )


def list_runs(archive: Archive) -> list[RunSummary]:
    """Every run, newest first."""
    return [_run_summary(row) for row in archive.rows(_RUNS.format(where=""))]


def outcome_counts(archive: Archive, run_id: str | None = None) -> dict[Outcome, int]:
    """How the attempts of a run (or of all runs) ended, most frequent first; killed ones count as stale."""
    query = """
        SELECT outcome, count(*) AS n FROM (
          SELECT CASE a.state WHEN 'stale' THEN 'stale' ELSE e.outcome END AS outcome
          FROM attempt a LEFT JOIN evaluation e ON e.attempt_id = a.id
          WHERE a.state <> 'in_flight' AND (?1 IS NULL OR a.run_id = ?1))
        GROUP BY outcome ORDER BY n DESC, outcome"""
    return {Outcome(row["outcome"]): row["n"] for row in archive.rows(query, run_id)}


def top(
    archive: Archive, deployment_name: str | None = None, limit: int = 10, basis: Basis = Basis.MEASURED
) -> list[TopEntry]:
    """The fastest genomes of one basis by ratio to AR. Ratios of different deployments or machines are not comparable.

    ArchiveError for a deployment of which the archive has no run of that basis.
    """
    with archive.snapshot():
        return _top(archive, deployment_name, limit, basis)


def _top(archive: Archive, deployment_name: str | None, limit: int, basis: Basis) -> list[TopEntry]:
    query = "SELECT DISTINCT deployment_name FROM run WHERE basis = ? ORDER BY 1"
    known = [row[0] for row in archive.rows(query, basis.value)]
    if deployment_name is not None and deployment_name not in known:
        kind = "predicted " if basis is Basis.PREDICTED else ""
        raise ArchiveError(
            f"the archive has no {kind}run of deployment {deployment_name!r}{nearest(deployment_name, known)}\n"
            f"It has runs of: {', '.join(known) or 'none'}"
        )
    return [
        _top_entry(archive, row["run_id"], row["number"])
        for row in archive.rows(_TOP, deployment_name, limit, basis.value)
    ]


def _top_entry(archive: Archive, run_id: str, number: int) -> TopEntry:
    run = rows.read_run(archive.rows("SELECT * FROM run WHERE id = ?", run_id)[0])
    attempt, evaluation = archive.finished(run_id, number)
    return TopEntry(
        deployment_name=run.deployment_name,
        run_id=run_id,
        number=number,
        genome=attempt.genome,
        evaluation=evaluation,
        environment=run.environment,
    )


def _attempts(archive: Archive, where: str, *values: str | int) -> list[AttemptDetail]:
    query = f"""SELECT a.*, r.deployment_name FROM attempt a JOIN run r ON r.id = a.run_id
                WHERE {where} ORDER BY a.id"""
    details = []
    for row in archive.rows(query, *values):
        done = row["state"] == "done"
        evaluation = archive.finished(row["run_id"], row["number"])[1] if done else None
        details.append(
            AttemptDetail(
                attempt=archive.attempt_of(row),
                deployment_name=row["deployment_name"],
                state=row["state"],
                started=row["started"],
                evaluation=evaluation,
                roles=summarise(evaluation.samples) if evaluation else (),
            )
        )
    return details


def _run_detail(archive: Archive, run_id: str) -> RunDetail:
    [row] = archive.rows(_RUNS.format(where="WHERE r.id = ?"), run_id)
    return RunDetail(
        summary=_run_summary(row),
        deployment=row["deployment"],
        space=row["space"],
        outcomes=outcome_counts(archive, run_id),
    )


def _only(text: str, kind: str, found: Sequence[str], known: Sequence[str]) -> str:
    """The one id that was meant: the exact one, or the only one that starts with the text."""
    if text in found:
        return text
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise ArchiveError(f"{text!r} begins {len(found)} ids: {shown}\nGive more of it.")
    if not found:
        raise ArchiveError(
            f"the archive has no {kind} {text!r}{nearest(text, known)}\n"
            "`archive list` names the runs, `archive top` the genomes; RUN/NUMBER is one attempt."
        )
    return found[0]


def _starting(text: str, ids: Sequence[str]) -> list[str]:
    return [known for known in ids if known.startswith(text)] if text else []


def show(archive: Archive, text: str) -> RunDetail | GenomeDetail | AttemptDetail:
    """Looks up a run id, a genome id or `RUN/NUMBER`; the start of an id is enough while it is the only one.

    ArchiveError for what is unknown (names the nearest) or ambiguous (names the candidates).
    """
    with archive.snapshot():
        return _show(archive, text)


def _show(archive: Archive, text: str) -> RunDetail | GenomeDetail | AttemptDetail:
    runs = [str(row[0]) for row in archive.rows("SELECT id FROM run ORDER BY seq DESC")]
    if "/" in text:
        return _show_attempt(archive, text, runs)
    genomes = [str(row[0]) for row in archive.rows("SELECT DISTINCT genome_id FROM attempt ORDER BY 1")]
    chosen = _only(text, "run or genome", _starting(text, runs + genomes), runs + genomes)
    if chosen in runs:
        return _run_detail(archive, chosen)
    attempts = _attempts(archive, "a.genome_id = ?", chosen)
    return GenomeDetail(genome=attempts[0].attempt.genome, attempts=tuple(attempts))


def _show_attempt(archive: Archive, text: str, runs: Sequence[str]) -> AttemptDetail:
    start, _, number = text.partition("/")
    run_id = _only(start, "run", _starting(start, runs), runs)
    attempts = _attempts(archive, "a.run_id = ? AND a.number = ?", run_id, int(number)) if number.isdecimal() else []
    if not attempts:
        last = archive.next_number(run_id) - 1
        raise ArchiveError(f"run {run_id} has no attempt {number!r}; its last one is {last}")
    return attempts[-1]  # a stale attempt may have had the same number before
