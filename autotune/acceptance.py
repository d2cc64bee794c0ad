"""`bench --acceptance`: how many drafted tokens hold, for every drafter of a deployment on sets of prompts.

Real decoding in the candidate worker, one request at a time, greedy; nothing is timed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive.export import read_export
from autotune.client import RequestFailed
from autotune.options import AcceptanceOptions
from autotune.prepared import PreparedPrompt
from autotune.selfcheck import tau
from autotune.session import Session, drafter_kinds, full_space
from autotune.terminal import AcceptanceLine, Console, notice, show_acceptance
from engine.protocol import Generated
from engine.weights.source import home_folder
from space.benchmarks import benchmark_path
from space.deployment import Deployment, find_deployment
from space.errors import EngineError
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue
from space.prompts import Prompt, read_prompts

_NGRAM: Mapping[str, KnobValue] = {"ngram_max": 3, "ngram_min": 1}
"""The usual baseline of the literature: the last 3 tokens, else 2, else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Which drafters compete, each with its knobs, on which deployment."""

    deployment: Deployment
    drafters: Mapping[str, Mapping[str, KnobValue]]

    @classmethod
    def of(cls, options: AcceptanceOptions) -> "Contest":
        """Every drafter of the deployment; the one that a configuration chose has that configuration's knobs."""
        chosen: dict[str, KnobValue] = {}
        if options.config is not None:
            export = read_export(options.config)
            deployment, chosen = export.deployment.restore(), export.genome.knobs
        else:
            deployment = find_deployment(options.deployment)
        space = full_space(deployment)
        names = ("ngram", "suffix", *drafter_kinds(deployment))
        return cls(
            deployment=deployment,
            drafters={name: _knobs(space, name, chosen, options.draft_length) for name in names},
        )


def _knobs(space: KnobSpace, name: str, chosen: Mapping[str, KnobValue], length: int) -> Mapping[str, KnobValue]:
    own = chosen if chosen.get("drafter") == name else _NGRAM if name == "ngram" else {}
    genome = Genome.complete(space, {**own, "drafter": name, "draft_length": length})
    space.validate(genome.knobs)
    return genome.knobs


def spread_over(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """At most `count` prompts, evenly spaced over the file: its kinds and its difficulty keep their shares."""
    count = min(count, len(prompts))
    return tuple(prompts[i * len(prompts) // count] for i in range(count))


def by_position(answers: Sequence[Generated], length: int) -> tuple[float | None, ...]:
    """For positions 1..length: of the steps that drafted so far, the share in which all drafts up to there held.

    None where no step drafted so far.
    """
    steps = [pair for answer in answers for pair in zip(answer.drafted, answer.accepted, strict=True)]
    shares = []
    for position in range(1, length + 1):
        accepted = [held >= position for drafted, held in steps if drafted >= position]
        shares.append(sum(accepted) / len(accepted) if accepted else None)
    return tuple(shares)


def _set(source: str, count: int) -> tuple[str, tuple[Prompt, ...]]:
    return source if source == "shipped" else Path(source).stem, spread_over(read_prompts(source), count)


def acceptance(console: Console, options: AcceptanceOptions) -> int:
    """Prints one line for each set of prompts and drafter."""
    contest = Contest.of(options)
    files = [str(benchmark_path(name, options.benchmark_dir)) for name in options.benchmark]
    sets = [_set(source, options.prompts) for source in ("shipped", *files)]
    lines = []
    with Session(contest.deployment, home_folder(), lambda text: notice(console, text)) as session:
        prepared = [(name, session.prepare(prompts, options.max_tokens)) for name, prompts in sets]
        session.check_drafter()
        for name, prompts in prepared:
            notice(console, f"{name}: {len(prompts)} prompts, {len(contest.drafters)} drafters")
            for drafter, knobs in contest.drafters.items():
                answers = _answers(session, knobs, prompts, options.max_tokens)
                lines.append(
                    AcceptanceLine(
                        prompts=name,
                        count=len(prompts),
                        drafter=drafter,
                        tokens=sum(len(answer.tokens) for answer in answers),
                        tau=tau(answers),
                        by_position=by_position(answers, options.draft_length),
                    )
                )
    show_acceptance(console, contest.deployment.name, options.max_tokens, lines)
    return 0


def _answers(
    session: Session, knobs: Mapping[str, KnobValue], prompts: Sequence[PreparedPrompt], max_tokens: int
) -> list[Generated]:
    answers = []
    for prompt in prompts:
        try:
            answers.append(session.answer(knobs, prompt, max_tokens))
        except RequestFailed as error:
            raise EngineError(f"drafter {knobs['drafter']} fails on prompt {prompt.id}: {error}") from error
    return answers
