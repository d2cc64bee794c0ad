"""Planning mode: a deployment whose GPU is not here is searched on the cost model, with real tokens of a stand-in.

Each regime is a run of its own in the archive, under the name NAME.bREGIME and with the basis `predicted`.
"""

import json
import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from archive.base import Basis, RunRecord
from archive.elites import cell_of
from archive.evidence import prompts_hash
from archive.store import Archive
from autotune.ablation import worths
from autotune.base import Trial, as_trials
from autotune.budget import Budget
from autotune.costmodel import CostModel
from autotune.environment import environment, packs_weights
from autotune.gaps import ceiling_tau
from autotune.history import searched
from autotune.log import logging_to
from autotune.loop import Ended, SearchResult, run_search
from autotune.mechanisms import MechanismsFirst, in_words
from autotune.operators import all_operators
from autotune.options import TuneOptions
from autotune.overheads import STOCK_VLLM
from autotune.predicted import PredictedEvaluator, Predictor
from autotune.ranking import best
from autotune.readiness import missing
from autotune.session import LazyEvaluator, Session, deployment_prompts
from autotune.stand_in import StandIn, stand_in_deployment
from autotune.terminal import (
    BudgetView,
    Console,
    PlannedRegime,
    PlanReport,
    StartBlock,
    TerminalObserver,
    notice,
    show_knobs,
    show_plan,
    show_start,
)
from autotune.tune import StopFlag, continued_run, default_archive, program_version
from autotune.waterfall import Panel, draw_waterfalls
from engine.weights.source import drafter_folder, home_folder
from space.canonical import canonical_json
from space.deployment import Deployment
from space.errors import InputError
from space.hardware import find_profile
from space.planned import planned_space, planned_stock
from space.prompts import PromptSplit
from space.shapes import find_drafter, find_model

_TOP_1, _TOP_4 = 0, 2
_STAND_IN = "SmolLM2-135M-Instruct with the bundled drafter, decoded here"


def plot_path(name: str) -> Path:
    """Where the waterfalls of a deployment go."""
    return Path("exports") / f"{name}-gaps.png"


def acceptance_headroom(folder: Path) -> float | None:
    """Tokens a step that a drafter's top 4 would allow over those of its top 1, from its training record.

    The record has, for each prompt set, the share of true tokens among the top 1, 2, 4, ... by position. A ratio and
    not a tau, since the prompts are others. None when the record does not say.
    """
    try:
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    sets = [entry["coverage"] for entry in _entries(record) if isinstance(entry.get("coverage"), list)]
    ratios = [ceiling_tau(tops[_TOP_4]) / ceiling_tau(tops[_TOP_1]) for tops in sets if len(tops) > _TOP_4]
    return sum(ratios) / len(ratios) if ratios else None


def _entries(record: object) -> list[dict[str, list[list[float]]]]:
    if not isinstance(record, dict):
        return []
    found = [record] if "coverage" in record else []
    return found + [entry for value in record.values() for entry in _entries(value)]


class _Plan:
    """One call of a planning run."""

    def __init__(self, console: Console, options: TuneOptions, deployment: Deployment) -> None:
        self.console = console
        self.options = options
        self.deployment = deployment
        everything = planned_space()
        self.space = everything.fixed({name: everything.parse(name, text) for name, text in options.settings})
        self.stock = planned_stock(everything)
        self.seconds = options.seconds or deployment.budget.seconds
        regimes = len(deployment.workload.concurrency)
        self.max_evals = max(1, (options.max_evals or deployment.budget.max_evals) // regimes)
        self.path = options.archive or default_archive()
        self.hardware = find_profile(str(deployment.hardware.profile))
        self.started = time.monotonic()
        self._waited = 0.0
        self._stand_in: StandIn | None = None

    @property
    def _model(self) -> CostModel:
        drafter = self.deployment.drafter
        return CostModel(
            hardware=self.hardware,
            target=find_model(str(self.deployment.target.shape)),
            drafter=find_drafter(str(drafter.shape)) if drafter else None,
            system=STOCK_VLLM,
        )

    def predictor(self, regime: int) -> Predictor:
        vocabulary = find_model("smollm2-135m").vocab
        return Predictor(model=self._model, regime=regime, stand_in_vocabulary=vocabulary)

    def start_block(self, finished: int) -> StartBlock:
        regimes = ", ".join(map(str, self.deployment.workload.concurrency))
        l2 = f", L2 {self.hardware.l2.value / 2**20:.0f} MiB" if self.hardware.l2 else ""
        peaks = (
            f"{self.hardware.read_bandwidth.value / 1e9:.0f} GB/s, {self.hardware.matrix_rate.value / 1e12:.0f} TFLOP/s"
        )
        return StartBlock(
            version=f"{program_version()}, planning mode: every speed below is PREDICTED by a cost model",
            deployment=f"{self.deployment.name}: {self.deployment.description}",
            signature=self.deployment.signature,
            model=f"{self.deployment.target.source}, not here; stand-in: {_STAND_IN}",
            hardware=f"{self.hardware.title} ({self.hardware.kind}: {peaks}{l2}), regimes {regimes}",
            seconds=self.seconds,
            max_evals=self.max_evals * len(self.deployment.workload.concurrency),
            archive=self.path,
            seed=self.options.seed,
            finished=finished,
        )

    def run(self) -> int:
        _, split = deployment_prompts(self.deployment)
        self._must_fit(split)
        if self.options.dry_run:
            show_start(self.console, self.start_block(0))
            show_knobs(self.console, self.space)
            return 0
        with Archive.open(self.path) as archive:
            runs = {regime: self._begun(archive, regime, split) for regime in self.deployment.workload.concurrency}
            show_start(self.console, self.start_block(sum(len(archive.history(run.id)) for run in runs.values())))
            results = self._search_all(archive, runs, split)
        return self._tell(results, split)

    def _must_fit(self, split: PromptSplit) -> None:
        largest = max(self.deployment.workload.concurrency)
        context = 512 + self.deployment.workload.max_tokens
        needed, there = self._model.memory(largest, context), self.hardware.memory.value
        if needed > there:
            raise InputError(
                f"{self.deployment.name}: {largest} requests of {context} tokens need {needed / 1e9:.1f} GB, "
                f"{self.hardware.title} has {there / 1e9:.1f}\nLower workload.concurrency or choose another profile."
            )

    def _begun(self, archive: Archive, regime: int, split: PromptSplit) -> RunRecord:
        part = self.deployment.at(regime)
        new = RunRecord(
            id=secrets.token_hex(4),
            deployment_name=part.name,
            deployment=canonical_json(part.content()),
            space=canonical_json(self.space.to_json()),
            prompts=prompts_hash([*split.search, *split.confirm]),
            seed=self.options.seed,
            environment=environment(),
            basis=Basis.PREDICTED,
        )
        if self.options.fresh:
            archive.begin_run(new)
            return new
        return continued_run(archive, new)

    def _search_all(self, archive: Archive, runs: dict[int, RunRecord], split: PromptSplit) -> dict[int, SearchResult]:
        results: dict[int, SearchResult] = {}
        stop = StopFlag(self.console)
        stand_in = stand_in_deployment(self.deployment)
        with stop.listening(), Session(stand_in, home_folder(), self._say) as session:
            for regime, run in runs.items():
                notice(self.console, f"regime of {regime} request{'s' * (regime != 1)}, predicted")
                with logging_to(home_folder() / "logs" / f"{run.id}.jsonl"):
                    results[regime] = self._search(archive, run, regime, session, split, stop)
                if results[regime].ended is Ended.STOPPED:
                    break
        return results

    def _search(
        self, archive: Archive, run: RunRecord, regime: int, session: Session, split: PromptSplit, stop: StopFlag
    ) -> SearchResult:
        history = as_trials(archive.history(run.id))
        known = best(history, self.space)
        spent = sum(trial.evaluation.seconds for trial in history)
        share = self._share(regime)
        view = BudgetView(
            seconds=share, max_evals=self.max_evals, seconds_spent=spent, evals_spent=len(searched(history))
        )
        budget = Budget(max_evals=self.max_evals, seconds=share, clock=self._clock, started=self._clock())
        leader = known.evaluation if known else None
        with TerminalObserver(self.console, self.space, self.stock, view, history, leader, "predicted") as observer:
            return run_search(
                store=archive,
                run=run,
                evaluator=LazyEvaluator(lambda: self._evaluator(regime, session, split)),
                proposer=MechanismsFirst(self.space, all_operators(cell_of), cell_of),
                budget=budget,
                observer=observer,
                stop=stop,
            )

    def _share(self, regime: int) -> float:
        """Seconds of this regime: its weight in what the regimes before it left over."""
        regimes = self.deployment.workload.concurrency
        ahead = sum(self.deployment.weight(other) for other in regimes[regimes.index(regime) :])
        left = max(1.0, self.seconds - (self._clock() - self.started))
        return left * self.deployment.weight(regime) / ahead

    def _clock(self) -> float:
        """Seconds in which something was searched: starting the stand-in is not charged to the first regime."""
        return time.monotonic() - self._waited

    def _evaluator(self, regime: int, session: Session, split: PromptSplit) -> PredictedEvaluator:
        if self._stand_in is None:
            started = time.monotonic()
            self._say("starting the stand-in: AR and stock on every prompt, and the noise of stock against itself")
            self._stand_in = StandIn(session, split, planned_space(), "packed" if packs_weights() else "plain")
            self._waited += time.monotonic() - started
        return PredictedEvaluator(
            predictor=self.predictor(regime),
            stand_in=self._stand_in,
            space=planned_space(),
            headroom=self._headroom(),
        )

    def _headroom(self) -> float | None:
        stand_in = stand_in_deployment(self.deployment)
        return acceptance_headroom(drafter_folder(stand_in.drafter.source)) if stand_in.drafter else None

    def _tell(self, results: dict[int, SearchResult], split: PromptSplit) -> int:
        rows = tuple(
            self._row(regime, result.winner, result.trials)
            for regime, result in results.items()
            if result.winner is not None
        )
        if len(rows) < len(self.deployment.workload.concurrency):
            notice(self.console, "stopped before every regime was confirmed; the same command continues")
            return 130 if any(result.ended is Ended.STOPPED for result in results.values()) else 1
        ratios = [(self.deployment.weight(row.regime), _ratio(row)) for row in rows]
        report = PlanReport(
            deployment=self.deployment.name,
            device=self.hardware.title,
            stand_in=_STAND_IN,
            regimes=rows,
            objective=math.exp(sum(weight * math.log(value) for weight, value in ratios)),
            seconds=time.monotonic() - self.started,
            evaluations=sum(len(result.trials) for result in results.values()),
            plot=self._plot(rows),
            missing=tuple(missing(self.deployment)),
        )
        show_plan(self.console, report)
        return 0

    def _row(self, regime: int, winner: Trial, trials: Sequence[Trial]) -> PlannedRegime:
        predictor, headroom = self.predictor(regime), self._headroom()
        samples = {
            role: [sample for sample in winner.evaluation.samples if sample.role == role]
            for role in ("stock", "candidate")
        }
        return PlannedRegime(
            regime=regime,
            best=winner.attempt.genome,
            evaluation=winner.evaluation,
            before=predictor.gaps(self.stock, samples["stock"], headroom),
            after=predictor.gaps(winner.attempt.genome, samples["candidate"], headroom),
            mechanisms=tuple(in_words(winner.attempt.genome)),
            worths=worths(winner.attempt.genome, trials, self.space),
        )

    def _plot(self, rows: Sequence[PlannedRegime]) -> Path | None:
        panels = [
            [
                Panel(title=f"stock at {row.regime} (predicted)", report=row.before),
                Panel(title=f"best at {row.regime} (predicted)", report=row.after),
            ]
            for row in rows
        ]
        path = plot_path(self.deployment.name)
        try:
            draw_waterfalls(path, f"{self.deployment.name}: predicted for {self.hardware.title}", panels)
        except InputError as error:
            notice(self.console, str(error))
            return None
        return path

    def _say(self, text: str) -> None:
        notice(self.console, text)


def _ratio(row: PlannedRegime) -> float:
    return row.evaluation.score.ratio_ar if row.evaluation.score is not None else 0.0


def plan(console: Console, options: TuneOptions, deployment: Deployment) -> int:
    """Plans a deployment; returns the exit code: 0, 1 when a regime could not be confirmed, or 130 after Ctrl-C."""
    return _Plan(console, options, deployment).run()
