"""From records to an export: which confirmed genome, and what speaks for it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from pydantic import ValidationError

from archive.base import Attempt, Basis, Evaluation, RunRecord
from archive.export import (
    FORMAT,
    EngineExport,
    Evidence,
    ExportedDeployment,
    ExportedPatch,
    ForcedEvidence,
    MeasuredOn,
    PromptEvidence,
    SystemEvidence,
)
from archive.summary import RoleSummary, summarise
from space.canonical import content_hash
from space.errors import ArchiveError, nearest
from space.outcome import Outcome
from space.prompts import Prompt

Pair = tuple[Attempt, Evaluation]


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of the prompts' content, in order of id."""
    ordered = sorted(prompts, key=lambda prompt: prompt.id)
    return content_hash([{"id": p.id, "group": p.group, "messages": list(p.messages)} for p in ordered], 64)


def confirmed(run_id: str, history: Sequence[Pair], genome_id: str | None = None) -> Pair:
    """The confirmation that may be exported: of one genome, or of the fastest confirmed one.

    A genome's last confirmation counts, and it must be ok; a genome that ever ended as a mismatch is not lossless and
    never qualifies. ArchiveError says why there is none.
    """
    last = {
        attempt.genome.id: (attempt, evaluation) for attempt, evaluation in history if evaluation.stage == "confirm"
    }
    broken = {attempt.genome.id for attempt, evaluation in history if evaluation.outcome is Outcome.MISMATCH}
    if genome_id is not None:
        _refuse_unconfirmed(run_id, history, genome_id, last)
        last = {genome_id: last[genome_id]}
    fit = [
        (evaluation.score.ratio_ar, attempt, evaluation)
        for attempt, evaluation in last.values()
        if evaluation.outcome is Outcome.OK and evaluation.score is not None and attempt.genome.id not in broken
    ]
    if not fit:
        endings = ", ".join(f"{identity} {pair[1].outcome.value}" for identity, pair in last.items()) or "none"
        raise ArchiveError(
            f"run {run_id} has no confirmed genome that may be exported (confirmations: {endings})\n"
            "Continue the run until it has confirmed its winner: python run.py --deployment NAME"
        )
    _, attempt, evaluation = max(fit, key=lambda entry: (entry[0], -entry[1].number))
    return attempt, evaluation


def _refuse_unconfirmed(run_id: str, history: Sequence[Pair], genome_id: str, last: dict[str, Pair]) -> None:
    known = {attempt.genome.id for attempt, _ in history}
    if genome_id not in known:
        raise ArchiveError(f"run {run_id} has no genome {genome_id!r}{nearest(genome_id, known)}")
    if genome_id not in last:
        raise ArchiveError(
            f"genome {genome_id} of run {run_id} was never confirmed on fresh prompts, so it cannot be exported\n"
            f"Confirmed in this run: {', '.join(last) or 'none'}"
        )


def _deployment(run: RunRecord) -> ExportedDeployment:
    try:
        return ExportedDeployment.model_validate({"name": run.deployment_name, **json.loads(run.deployment)})
    except ValidationError as error:
        raise ArchiveError(
            f"run {run.id} was made for another form of deployment ({error.errors()[0]['msg']})\n"
            "Tune anew, then export: python run.py --deployment NAME --fresh"
        ) from error


def _system(summary: RoleSummary) -> SystemEvidence:
    return SystemEvidence(
        tokens_per_second=summary.tokens_per_second,
        spread=summary.spread,
        tau=summary.tau,
        repeats=summary.repeats,
        tokens=summary.tokens,
        seconds=summary.seconds,
    )


def _prompt_evidence(history: Sequence[Pair], evaluation: Evaluation, prompts: Sequence[Prompt]) -> PromptEvidence:
    measured = sorted({sample.prompt_id for sample in evaluation.samples})
    searched = sorted({s.prompt_id for _, e in history if e.stage == "search" for s in e.samples})
    if measured != sorted(prompt.id for prompt in prompts):
        raise ArchiveError(
            "the prompts that were given are not those of the confirmation: "
            f"given {', '.join(sorted(p.id for p in prompts))}; measured {', '.join(measured)}"
        )
    seen = sorted({*measured} & {*searched})
    if seen:
        raise ArchiveError(f"the search saw prompts of the confirmation: {', '.join(seen)}; confirm on fresh ones")
    return PromptEvidence(searched=tuple(searched), confirmed=tuple(measured), confirmed_hash=prompts_hash(prompts))


def build_export(
    run: RunRecord, history: Sequence[Pair], prompts: Sequence[Prompt], genome_id: str | None = None
) -> EngineExport:
    """Builds the document for a confirmed genome (default: the fastest). `prompts` are those of the confirmation.

    ArchiveError when nothing may be exported, when tokens were not forced, or when a system was not measured beside it.
    """
    if run.basis is not Basis.MEASURED:
        raise ArchiveError(
            f"run {run.id} is {run.basis.value}: its seconds are a cost model's, so there is no evidence to export\n"
            "Measure on the device itself; the plan says what that needs."
        )
    attempt, evaluation = confirmed(run.id, history, genome_id)
    name = f"{run.id}/{attempt.number}"
    roles = {summary.role: _system(summary) for summary in summarise(evaluation.samples)}
    missing = [role for role in ("ar", "stock", "candidate") if role not in roles]
    forced, score = evaluation.forced, evaluation.score
    if missing or score is None:
        raise ArchiveError(f"attempt {name} cannot be exported: it has no samples of {', '.join(missing)}")
    if forced is None or forced.tokens < 1 or forced.first_mismatch is not None:
        raise ArchiveError(f"attempt {name} cannot be exported: its tokens were not forced through stock")
    return EngineExport(
        format=FORMAT,
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        deployment=_deployment(run),
        knobs=attempt.genome.knobs,
        patches=tuple(ExportedPatch(base=patch.base, diff=patch.diff) for patch in attempt.genome.patches),
        evidence=Evidence(
            run_id=run.id,
            genome_id=attempt.genome.id,
            attempt=name,
            environment=MeasuredOn(**asdict(run.environment)),
            prompts=_prompt_evidence(history, evaluation, prompts),
            ratio_ar=score.ratio_ar,
            ratio_stock=score.ratio_stock,
            spread=score.spread,
            ar=roles["ar"],
            stock=roles["stock"],
            best=roles["candidate"],
            forced=ForcedEvidence(tokens=forced.tokens, exact=forced.exact, near_ties=forced.near_ties),
        ),
    )
