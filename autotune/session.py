"""Everything that measuring a deployment needs, set up once: model, prompts, workers, noise, baseline."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

from archive.base import Attempt, Evaluation
from autotune import selfcheck
from autotune.base import Evaluator
from autotune.baseline import STEADY_WITHIN, measure_baseline
from autotune.bench import TimedRequests
from autotune.client import Launch, RequestFailed, WorkerClient
from autotune.environment import packs_weights, usable_cores
from autotune.forcing import TokenForcing, measure_noise
from autotune.measure import MeasuringEvaluator
from autotune.prepared import PreparedPrompt, prepare, units
from autotune.sandbox.workers import PatchedWorkers
from engine.formats import DRAFTER_KINDS, drafter_kind
from engine.protocol import Generate, Generated
from engine.tokenizer import ChatTokenizer
from engine.weights.source import checkpoint_folder, drafter_folder
from space.catalog import ar_genome, cpu_space, stock_genome
from space.deployment import Deployment
from space.errors import EngineError, InputError
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue
from space.prompts import Prompt, PromptSplit, read_prompts, split_prompts

Say = Callable[[str], None]
_ANSWER_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """The two settings that every result is compared with."""

    ar: Genome
    stock: Genome

    @classmethod
    def of(cls, space: KnobSpace) -> "Baselines":
        """AR and stock of a space with nothing held fixed."""
        return cls(ar=ar_genome(space), stock=stock_genome(space))


def full_space(deployment: Deployment | None = None) -> KnobSpace:
    """The knobs of a deployment on this machine; without one, all that any deployment may have."""
    kinds = DRAFTER_KINDS if deployment is None else drafter_kinds(deployment)
    concurrency = None if deployment is None else deployment.regime
    return cpu_space(usable_cores(), packs=packs_weights(), neural=kinds, concurrency=concurrency)


def drafter_kinds(deployment: Deployment) -> tuple[str, ...]:
    """The kind of the deployment's drafter checkpoint, if it has one. EngineError where none can be read."""
    return (drafter_kind(drafter_folder(deployment.drafter.source)),) if deployment.drafter else ()


def deployment_prompts(deployment: Deployment) -> tuple[tuple[Prompt, ...], PromptSplit]:
    """All prompts of a deployment, and how search and confirmation share them."""
    workload = deployment.workload
    prompts = read_prompts(workload.prompts)
    return prompts, split_prompts(prompts, workload.search_per_group, workload.confirm_per_group)


class Session:
    """A measuring session. Use as a context manager: the workers live inside.

    `worker_module` is the candidate's; tests put broken candidates there. Stock is always the project's own.
    """

    def __init__(
        self,
        deployment: Deployment,
        home: Path,
        say: Say,
        worker_module: str = "engine.worker",
        *,
        unsafe: bool = False,
    ) -> None:
        """Gets the model (fetching it where needed) and starts both workers on first use.

        `unsafe` lets patched candidates run where this machine cannot confine them.
        """
        self.deployment = deployment
        self._say = say
        self._stack = ExitStack()
        target, threads = deployment.target, usable_cores()
        folder = checkpoint_folder(target.source, home, say)
        self._tokenizer = ChatTokenizer(folder)
        drafter = self._drafter = drafter_folder(deployment.drafter.source) if deployment.drafter else None

        def launch(role: str, module: str) -> Launch:
            return Launch(
                role=role,
                model=folder,
                max_context=target.max_context,
                threads=threads,
                drafter=drafter,
                module=module,
            )

        enter, candidate = self._stack.enter_context, launch("candidate", worker_module)
        self._stock = enter(WorkerClient(launch("stock", "engine.worker")))
        self._candidate = enter(WorkerClient(candidate))
        self._patched = enter(PatchedWorkers(candidate, unsafe=unsafe))
        self._space = full_space(deployment)
        self._baselines = Baselines.of(self._space)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def prepare(self, prompts: tuple[Prompt, ...], max_tokens: int | None = None) -> tuple[PreparedPrompt, ...]:
        """Encodes prompts for this deployment; answers get the workload's `max_tokens` unless said otherwise."""
        return prepare(
            prompts,
            self._tokenizer,
            workload=self.deployment.workload,
            max_tokens=max_tokens or self.deployment.workload.max_tokens,
            max_context=self.deployment.target.max_context,
        )

    def requests(self) -> TimedRequests:
        """Starts the workers. EngineError when the model cannot be loaded."""
        for worker in (self._stock, self._candidate):
            worker.launch()  # both load at once
        try:
            requests = TimedRequests(
                stock=self._stock,
                candidate=self._candidate,
                patched=self._patched,
                ar=self._baselines.ar,
                stock_genome=self._baselines.stock,
                max_tokens=self.deployment.workload.max_tokens,
            )
        except RequestFailed as error:
            raise EngineError(f"the engine cannot start: {error}") from error
        self.check_drafter()
        return requests

    def answer(self, knobs: Mapping[str, KnobValue], prompt: PreparedPrompt, max_tokens: int) -> Generated:
        """One untimed answer of the candidate worker. RequestFailed says how it failed."""
        stop_ids = self._candidate.start().stop_ids
        request = Generate(
            knobs=dict(knobs),
            prompt=prompt.tokens,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            sampling=prompt.sampling,
        )
        return self._candidate.generate(request, _ANSWER_SECONDS)[0]

    def check_drafter(self) -> None:
        """Warns where the deployment's drafter accepts as if it were wired wrongly (see autotune/selfcheck.py)."""
        if self._drafter is None:
            return
        prompts = built_in_prompts(self._tokenizer, self.deployment.target.max_context - selfcheck.TOKENS)

        def ask(knobs: Mapping[str, KnobValue], tokens: int) -> list[Generated]:
            return [self.answer(knobs, prompt, tokens) for prompt in prompts]

        try:
            check = selfcheck.self_check(ask, self._space, drafter_kind(self._drafter), self._drafter)
        except RequestFailed as error:
            self._say(f"the drafter's self-check failed: {error}")
            return
        if not check.passed:
            self._say(check.warning())

    def forcing(self, requests: TimedRequests, answers: Sequence[tuple[PreparedPrompt, Generated]]) -> TokenForcing:
        """Measures stock's noise against itself on AR answers of its own, which become references of forcing."""
        noise = measure_noise(self._stock, answers, str(self._baselines.ar.knobs["linear_path"]))
        self._say(f"noise of stock against itself: {noise.describe()}")
        forcing = TokenForcing(self._stock, noise, requests.stop_ids)
        if self.deployment.regime == 1:  # several at once are not one row a step
            for prompt, answer in answers:
                forcing.remember(prompt, answer)
        return forcing

    def evaluator(self, split: PromptSplit, best_ratio: float = 0.0) -> MeasuringEvaluator:
        """Sets up the evaluator: workers, noise, and AR and stock on the search prompts."""
        search, confirm = self.prepare(split.search), self.prepare(split.confirm)
        self._say("starting the engine; measuring AR, stock, and the noise of stock against itself")
        requests = self.requests()
        regime = self.deployment.regime
        asked = units(search, regime)
        baseline, ar = measure_baseline(requests, asked)
        if baseline.unsteadiness() > STEADY_WITHIN:
            self._say(
                f"this machine is busy: AR's step time spreads by {baseline.unsteadiness():.0%}; figures will too"
            )
        return MeasuringEvaluator(
            requests=requests,
            forcing=self.forcing(requests, [(p, t.answer) for p, t in zip(chain(*asked), ar, strict=True)]),
            baseline=baseline,
            search=search,
            confirm=confirm,
            regime=regime,
            best_ratio=best_ratio,
        )


class LazyEvaluator:
    """Makes the evaluator when the first attempt comes: a finished run prints its result without starting an engine."""

    def __init__(self, make: Callable[[], Evaluator]) -> None:
        """`make` is called at most once."""
        self._make = make
        self._made: Evaluator | None = None

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Evaluates, see MeasuringEvaluator."""
        if self._made is None:
            self._made = self._make()
        return self._made.evaluate(attempt, stage)


def built_in_prompts(tokenizer: ChatTokenizer, longest: int) -> tuple[PreparedPrompt, ...]:
    """The shortest shipped prompt of each of the first groups, cut where a small context has no room for it."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in read_prompts("shipped"):
        groups.setdefault(prompt.group, []).append(prompt)
    short = [min(group, key=lambda prompt: len(prompt.messages[0]["content"])) for group in groups.values()]
    return tuple(
        PreparedPrompt(id=prompt.id, group=prompt.group, tokens=tokenizer.encode(prompt.messages)[-longest:])
        for prompt in short[: selfcheck.PROMPTS]
    )


def fresh_prompts(prompts: tuple[Prompt, ...], seen: tuple[str, ...], per_group: int) -> tuple[Prompt, ...]:
    """At most `per_group` prompts of each group that are not among the seen ids, in file order."""
    taken: dict[str, int] = {}
    fresh = []
    for prompt in prompts:
        if prompt.id not in seen and taken.get(prompt.group, 0) < per_group:
            taken[prompt.group] = taken.get(prompt.group, 0) + 1
            fresh.append(prompt)
    if not fresh:
        raise InputError("no prompt is left that the search did not see; add prompts to the workload")
    return tuple(fresh)
