"""Builders of records for the tests of this folder: every field has a plausible value."""

from dataclasses import replace

from archive.base import Attempt, Descriptor, Environment, Evaluation, Forced, RunRecord, Sample, Score
from space.canonical import canonical_json
from space.catalog import cpu_space
from space.deployment import find_deployment
from space.genome import Genome
from space.outcome import Outcome
from space.prompts import Prompt

SPACE = cpu_space(cores=2)
CONFIRM_PROMPTS = tuple(
    Prompt(id=f"fresh-{i}", group="chat", messages=({"role": "user", "content": f"Say {i}."},)) for i in range(2)
)


def environment(**changes) -> Environment:
    plain = Environment(
        host="box",
        cpu="Some CPU",
        cores=2,
        memory_gib=7.5,
        python="3.11.7",
        torch="2.13.0",
        system="Linux",
        code="abc123",
    )
    return replace(plain, **changes)


def run(id: str = "run-a", **changes) -> RunRecord:
    plain = RunRecord(
        id=id,
        deployment_name="cpu-smollm2",
        deployment=canonical_json(find_deployment("cpu-smollm2").content()),
        space=canonical_json(SPACE.to_json()),
        seed=7,
        environment=environment(),
    )
    return replace(plain, **changes)


def genome(length: int = 6, **knobs) -> Genome:
    return Genome.complete(SPACE, {"drafter": "ngram", "draft_length": length, **knobs})


def attempt(number: int = 1, run_id: str = "run-a", **changes) -> Attempt:
    plain = Attempt(
        number=number,
        run_id=run_id,
        genome=genome(1 + number % 32),
        parents=("0123456789ab",),
        operator="tpe",
        rng_state="[3, [1, 2], null]",
    )
    return replace(plain, **changes)


def samples(prompt_ids=("seen-0", "seen-1"), repeats: int = 3, seconds: float = 1.0) -> tuple[Sample, ...]:
    """AR makes 64 tokens in 2 x `seconds`, stock in 1.5 x, the candidate in 1 x; repeats differ by a hundredth."""
    slower = {"ar": (2.0, 64), "stock": (1.5, 48), "candidate": (1.0, 32)}
    return tuple(
        Sample(
            prompt_id=prompt,
            role=role,
            repeat=repeat,
            tokens=64,
            seconds=seconds * factor * (1 + repeat / 100),
            steps=steps,
            drafted=0 if role == "ar" else 100,
            accepted=64 - steps,
            draft_seconds=0.001,
            verify_seconds=0.9,
        )
        for repeat in range(repeats)
        for prompt in prompt_ids
        for role, (factor, steps) in slower.items()
    )


def score(ratio: float = 2.0, spread: float = 0.01) -> Score:
    return Score(
        ratio_ar=ratio,
        ratio_stock=ratio / 1.3,
        spread=spread,
        tau=2.0,
        tokens_per_second=32.0 * ratio,
        ar_tokens_per_second=32.0,
        stock_tokens_per_second=42.0,
    )


def ok(number: int = 1, run_id: str = "run-a", ratio: float = 2.0, **changes) -> Evaluation:
    plain = Evaluation(
        attempt=number,
        run_id=run_id,
        stage="search",
        outcome=Outcome.OK,
        reason="",
        seconds=4.25,
        forced=Forced(tokens=384, exact=383, near_ties=1),
        score=score(ratio),
        descriptor=Descriptor(regime=1, gap="host", width=1.2),
        samples=samples(),
    )
    return replace(plain, **changes)


def failed(number: int = 1, run_id: str = "run-a", outcome: Outcome = Outcome.MISMATCH, **changes) -> Evaluation:
    forced = Forced(tokens=90, exact=89, near_ties=0, first_mismatch="seen-0 token 12: 5 is not 7")
    plain = Evaluation(
        attempt=number,
        run_id=run_id,
        stage="search",
        outcome=outcome,
        reason="token 12 is not stock's",
        seconds=0.5,
        forced=forced if outcome is Outcome.MISMATCH else None,
    )
    return replace(plain, **changes)


def confirmation(number: int, run_id: str = "run-a", ratio: float = 1.9, **changes) -> Evaluation:
    fresh = samples(tuple(prompt.id for prompt in CONFIRM_PROMPTS))
    return replace(ok(number, run_id, ratio, stage="confirm", samples=fresh), **changes)


def record(store, started: Attempt, evaluation: Evaluation) -> None:
    store.begin_attempt(started)
    store.finish_attempt(evaluation)
