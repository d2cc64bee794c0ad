"""Checks of an exported configuration: token forcing on prompts that the search never saw, and a benchmark."""

from itertools import chain
from pathlib import Path

from archive.base import Attempt, Evaluation, Sample
from archive.export import EngineExport, read_export
from archive.summary import median_seconds, summarise
from autotune.baseline import Baseline
from autotune.bench import TimedRequests
from autotune.client import RequestFailed
from autotune.forcing import TokenForcing
from autotune.measure import MeasuringEvaluator
from autotune.prepared import PreparedPrompt, units
from autotune.session import Session, fresh_prompts
from autotune.terminal import BenchReport, Console, GroupLine, VerifyReport, notice, show_bench, show_verify
from autotune.tune import system_rows
from engine.weights.source import home_folder
from space.deployment import Deployment
from space.errors import EngineError
from space.genome import Genome
from space.outcome import Outcome
from space.prompts import read_prompts

_BENCH_PER_GROUP = 2
_ALL = 1_000_000
_BENCHMARK_PROMPTS = 20
"""Prompts of a benchmark that `verify` forces; `bench` measures half as many, three times."""
_TIMEOUT = 300.0


class _Check:
    """A configuration with a session of its deployment and prompts that its search never saw."""

    def __init__(self, console: Console, config: Path, benchmark: Path | None, *, unsafe: bool) -> None:
        self.console = console
        self.benchmark = benchmark
        self.unsafe = unsafe
        self.config = config
        self.export: EngineExport = read_export(config)
        self.deployment: Deployment = self.export.deployment.restore()
        self.genome: Genome = self.export.genome

    def session(self) -> Session:
        return Session(self.deployment, home_folder(), lambda text: notice(self.console, text), unsafe=self.unsafe)

    def prompts(self, session: Session, per_group: int) -> tuple[PreparedPrompt, ...]:
        if self.benchmark is not None:
            per_group = min(_BENCHMARK_PROMPTS, max(per_group, _BENCHMARK_PROMPTS // 2))
        everything = read_prompts(str(self.benchmark or self.deployment.workload.prompts))
        return session.prepare(fresh_prompts(everything, self.export.evidence.prompts.searched, per_group))

    def forcing(self, session: Session, requests: TimedRequests, prompts: tuple[PreparedPrompt, ...]) -> TokenForcing:
        requests.warm_up_reference(prompts[0])
        return session.forcing(requests, [(prompt, requests.reference("ar", prompt).answer) for prompt in prompts])


def verify(console: Console, config: Path, benchmark: Path | None = None, *, unsafe: bool = False) -> int:
    """Forces every token of a configuration on unseen prompts; 0 when it equals stock, 1 when not.

    On all of its own, or on the first _BENCHMARK_PROMPTS of a benchmark's file.
    """
    check = _Check(console, config, benchmark, unsafe=unsafe)
    with check.session() as session:
        prompts = check.prompts(session, _ALL)
        requests = session.requests()
        notice(
            console, f"forcing {config.name} on {len(prompts)} prompts: about {4 * len(prompts)} s on a quiet machine"
        )
        forcing = check.forcing(session, requests, prompts)
        verdicts = []
        for unit in units(prompts, check.deployment.regime, rest=True):
            try:
                found = requests.candidates(check.genome, unit, 0, _TIMEOUT)
            except RequestFailed as error:
                raise EngineError(f"{config}: the configuration fails on prompt {unit[0].id}: {error}") from error
            for prompt, timed in zip(unit, found, strict=True):
                verdicts.append(forcing.judge(prompt, timed.answer, requests.max_tokens))
        forced = forcing.total(verdicts)
    show_verify(console, VerifyReport(config=config, prompts=len(prompts), forced=forced))
    return 1 if forced.first_mismatch else 0


def bench(console: Console, config: Path, benchmark: Path | None = None, *, unsafe: bool = False) -> int:
    """Measures a configuration beside AR and stock on unseen prompts; 1 when its tokens are not stock's."""
    check = _Check(console, config, benchmark, unsafe=unsafe)
    with check.session() as session:
        asked = units(check.prompts(session, max(_BENCH_PER_GROUP, check.deployment.regime)), check.deployment.regime)
        prompts = tuple(chain(*asked))
        notice(console, f"measuring AR, stock and {config.name} in turns on {len(prompts)} prompts, three times")
        requests = session.requests()
        evaluation = MeasuringEvaluator(
            requests=requests,
            forcing=check.forcing(session, requests, prompts[:5]),
            baseline=Baseline(samples=()),
            search=(),
            confirm=prompts,
            regime=check.deployment.regime,
        ).evaluate(_attempt(check.genome), "confirm")
    if evaluation.forced is not None and evaluation.forced.first_mismatch:
        show_verify(console, VerifyReport(config=config, prompts=len(prompts), forced=evaluation.forced))
        return 1
    if evaluation.outcome is not Outcome.OK:
        raise EngineError(f"{config}: {evaluation.outcome}: {evaluation.reason}")
    groups = tuple(_group_line(name, evaluation, prompts) for name in dict.fromkeys(p.group for p in prompts))
    show_bench(console, BenchReport(config=config, rows=system_rows(evaluation), groups=groups))
    return 0


def _attempt(genome: Genome) -> Attempt:
    return Attempt(number=1, run_id="bench", genome=genome, parents=(), operator="bench", rng_state="")


def _group_line(group: str, evaluation: Evaluation, prompts: tuple[PreparedPrompt, ...]) -> GroupLine:
    ids = {prompt.id for prompt in prompts if prompt.group == group}
    samples: list[Sample] = [sample for sample in evaluation.samples if sample.prompt_id in ids]
    seconds = {role: sum(median_seconds(samples, role).values()) for role in ("ar", "stock", "candidate")}
    tau = next(summary.tau for summary in summarise(samples) if summary.role == "candidate")
    return GroupLine(
        group=group,
        ratio_ar=seconds["ar"] / seconds["candidate"],
        ratio_stock=seconds["stock"] / seconds["candidate"],
        tau=tau,
    )
