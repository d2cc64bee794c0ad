"""The main job: begin or continue a run, search, confirm, export, and tell."""

import json
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

from archive.base import Evaluation, RunRecord
from archive.elites import cell_of
from archive.evidence import build_export, prompts_hash
from archive.export import write_export
from archive.queries import outcome_counts
from archive.store import Archive
from archive.summary import summarise
from autotune.ablation import worths
from autotune.base import Trial, as_trials
from autotune.budget import Budget
from autotune.environment import environment
from autotune.history import searched
from autotune.log import logging_to
from autotune.loop import Ended, SearchResult, run_search
from autotune.operators import all_operators
from autotune.options import TuneOptions
from autotune.proposer import Proposer
from autotune.ranking import best
from autotune.session import Baselines, LazyEvaluator, Session, deployment_prompts, full_space
from autotune.terminal import (
    BudgetView,
    Console,
    StartBlock,
    Summary,
    SystemRow,
    TerminalObserver,
    notice,
    show_knobs,
    show_start,
    show_summary,
)
from engine.weights.source import home_folder
from space.canonical import canonical_json, differing_keys
from space.deployment import Deployment
from space.errors import InputError
from space.knobs import KnobSpace
from space.prompts import PromptSplit

_STOPPING = "stopping after this evaluation; the same command continues (Ctrl-C again: at once)"
_STOPPED = "stopped before anything was confirmed; the same command continues"
_UNCONFIRMED = "nothing to export: no candidate was confirmed; see python run.py archive list, then archive show RUN"
_NAMES = {"ar": "AR", "stock": "stock", "candidate": "best"}


def default_archive() -> Path:
    """The archive file in the home folder."""
    return home_folder() / "archive.sqlite"


def default_export(name: str) -> Path:
    """Where a deployment's configuration goes when nobody says otherwise."""
    return Path("exports") / f"{name}.json"


def program_version() -> str:
    """The installed version; `source` when it runs without being installed."""
    try:
        return version("specpilot")
    except PackageNotFoundError:
        return "source"


class StopFlag:
    """Ctrl-C: the first one lets the evaluation in flight finish, the second one interrupts it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.raised = False

    def __call__(self) -> bool:
        """True once Ctrl-C was pressed."""
        return self.raised

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.raised:
            raise KeyboardInterrupt
        self.raised = True
        # In a thread of its own: this handler may have interrupted a line that is being printed, which printing again
        # from here would repeat.
        threading.Thread(target=notice, args=(self._console, _STOPPING)).start()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes over SIGINT inside."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _new_run(deployment: Deployment, space: KnobSpace, split: PromptSplit, seed: int) -> RunRecord:
    return RunRecord(
        id=secrets.token_hex(4),
        deployment_name=deployment.name,
        deployment=canonical_json(deployment.content()),
        space=canonical_json(space.to_json()),
        prompts=prompts_hash([*split.search, *split.confirm]),
        seed=seed,
        environment=environment(),
    )


def _differences(old: RunRecord, new: RunRecord) -> list[str]:
    """What makes results of two runs incomparable, or their searches different."""
    lines = []
    for name, a, b in (
        ("", json.loads(old.deployment), json.loads(new.deployment)),
        ("space", json.loads(old.space), json.loads(new.space)),
        ("environment", asdict(old.environment), asdict(new.environment)),
        ("prompts", old.prompts, new.prompts),
        ("seed", old.seed, new.seed),
    ):
        lines += differing_keys(a, b, name)
    return lines


def continued_run(archive: Archive, new: RunRecord) -> RunRecord:
    """The run to continue, or the new one, begun. InputError with the differing keys when they do not fit together."""
    old = archive.latest_run(new.deployment_name, new.basis)
    if old is None:
        archive.begin_run(new)
        return new
    different = _differences(old, new)
    if different and not archive.history(old.id):
        archive.begin_run(new)  # nothing to lose: it never got to an evaluation, perhaps for what was just corrected
        return new
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise InputError(
            f"run {old.id} of {new.deployment_name} cannot be continued: {'; '.join(different[:3])}{more}\n"
            "Start anew with --fresh (nothing is deleted), or undo the change."
        )
    archive.mark_stale(old.id)
    return old


class _Job:
    """One call of the main job."""

    def __init__(self, console: Console, options: TuneOptions, deployment: Deployment) -> None:
        self.console = console
        self.options = options
        self.deployment = deployment
        everything = full_space(self.deployment)
        self.space = everything.fixed({name: everything.parse(name, text) for name, text in options.settings})
        self.stock = Baselines.of(everything).stock
        self.seconds = options.seconds or self.deployment.budget.seconds
        self.max_evals = options.max_evals or self.deployment.budget.max_evals
        self.path = options.archive or default_archive()
        self.started = time.monotonic()

    def start_block(self, run: RunRecord, finished: int) -> StartBlock:
        """What is about to happen."""
        machine = run.environment
        cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
        return StartBlock(
            version=program_version(),
            deployment=f"{self.deployment.name}: {self.deployment.description}",
            signature=self.deployment.signature,
            model=self.deployment.target.source,
            hardware=f"{machine.cpu}, {cores}, {machine.memory_gib} GiB, torch {machine.torch}",
            seconds=self.seconds,
            max_evals=self.max_evals,
            archive=self.path,
            seed=run.seed,
            finished=finished,
        )

    def run(self) -> int:
        """Searches, tells, exports."""
        _, split = deployment_prompts(self.deployment)
        new = _new_run(self.deployment, self.space, split, self.options.seed)
        if self.options.dry_run:
            show_start(self.console, self.start_block(new, 0))
            show_knobs(self.console, self.space)
            return 0
        with Archive.open(self.path) as archive:
            if self.options.fresh:
                archive.begin_run(new)
            run = new if self.options.fresh else continued_run(archive, new)
            with logging_to(home_folder() / "logs" / f"{run.id}.jsonl"):
                result = self._search(archive, run, split)
            return self._tell(archive, run, result, split)

    def _search(self, archive: Archive, run: RunRecord, split: PromptSplit) -> SearchResult:
        history = as_trials(archive.history(run.id))
        show_start(self.console, self.start_block(run, len(history)))
        known = best(history, self.space)
        spent = sum(trial.evaluation.seconds for trial in history)
        view = BudgetView(
            seconds=self.seconds, max_evals=self.max_evals, seconds_spent=spent, evals_spent=len(searched(history))
        )
        budget = Budget(
            max_evals=self.max_evals,
            seconds=self.seconds,
            clock=time.monotonic,
            started=self.started,
            confirm_cost=4.5 * len(split.confirm) / len(split.search),
        )
        stop = StopFlag(self.console)
        leader = known.evaluation if known else None
        with (
            stop.listening(),
            TerminalObserver(self.console, self.space, self.stock, view, history, leader) as observer,
            Session(self.deployment, home_folder(), self._say, unsafe=self.options.unsafe) as session,
        ):
            return run_search(
                store=archive,
                run=run,
                evaluator=LazyEvaluator(lambda: session.evaluator(split, _ratio(known))),
                proposer=Proposer(self.space, all_operators(cell_of), cell_of),
                budget=budget,
                observer=observer,
                stop=stop,
            )

    def _tell(self, archive: Archive, run: RunRecord, result: SearchResult, split: PromptSplit) -> int:
        export = None
        stopped = result.ended is Ended.STOPPED
        if result.winner is not None:
            export = default_export(self.deployment.name)
            genome = result.winner.attempt.genome
            write_export(export, build_export(run, archive.history(run.id), split.confirm, genome.id))
        summary = Summary(
            deployment=f"{self.deployment.name}, confirmed on {len(split.confirm)} prompts that the search never saw",
            seconds=sum(trial.evaluation.seconds for trial in result.trials),
            rows=system_rows(result.winner.evaluation) if result.winner else (),
            counts=outcome_counts(archive, run.id),
            best=result.winner.attempt.genome if result.winner else None,
            export=export,
            worths=worths(result.winner.attempt.genome, result.trials, self.space) if result.winner else (),
            without=_STOPPED if stopped else _UNCONFIRMED,
        )
        show_summary(self.console, summary)
        return 130 if stopped else int(result.winner is None)

    def _say(self, text: str) -> None:
        notice(self.console, text)


def _ratio(trial: Trial | None) -> float:
    return trial.evaluation.score.ratio_ar if trial is not None and trial.evaluation.score is not None else 0.0


def system_rows(evaluation: Evaluation) -> tuple[SystemRow, ...]:
    """AR, stock and the candidate of one evaluation in which all three answered every prompt."""
    score = evaluation.score
    if score is None:
        return ()
    roles = {summary.role: summary for summary in summarise(evaluation.samples)}
    speeds = {
        "ar": score.ar_tokens_per_second,
        "stock": score.stock_tokens_per_second,
        "candidate": score.tokens_per_second,
    }
    return tuple(
        SystemRow(
            name=name,
            tokens_per_second=speeds[role],
            ratio_ar=speeds[role] / speeds["ar"],
            ratio_stock=speeds[role] / speeds["stock"],
            spread=roles[role].spread,
            tau=roles[role].tau,
            forced=evaluation.forced if role == "candidate" else None,
        )
        for role, name in _NAMES.items()
    )


def tune(console: Console, options: TuneOptions, deployment: Deployment) -> int:
    """Runs the main job; returns the exit code: 0, 1 when nothing could be confirmed, or 130 after Ctrl-C."""
    return _Job(console, options, deployment).run()
