"""A store in memory, a synthetic landscape with a known optimum, and a strategy for small knob spaces."""

import math
import random

from hypothesis import strategies as st

from archive.base import Attempt, Descriptor, Environment, Evaluation, RunRecord, Score
from autotune.base import Trial
from autotune.budget import Budget
from autotune.loop import run_search
from autotune.operators import all_operators
from autotune.proposer import Proposer
from autotune.recorded import ReplayClock
from space.catalog import cpu_space
from space.genome import Genome
from space.knobs import ChoiceDomain, Condition, FloatDomain, IntDomain, Knob, KnobSpace, Order
from space.outcome import Outcome

SPACE = cpu_space(cores=4)
ENVIRONMENT = Environment(
    host="test", cpu="test", cores=4, memory_gib=8.0, python="3", torch="2", system="test", code="0"
)


def run_record(seed=0):
    return RunRecord(id="run", deployment_name="test", deployment="{}", space="{}", seed=seed, environment=ENVIRONMENT)


def cell_of(descriptor):
    return (descriptor.regime, descriptor.gap, int(descriptor.width))


class MemoryStore:
    """Keeps what a real store keeps: an attempt that was begun and not finished leaves no trace in the history."""

    def __init__(self):
        self.begun = {}
        self.done = {}

    def begin_run(self, run):
        pass

    def begin_attempt(self, attempt):
        assert attempt.number not in self.done, "a finished attempt was begun again"
        self.begun[attempt.number] = attempt

    def finish_attempt(self, evaluation):
        assert evaluation.attempt not in self.done, "an attempt was finished twice"
        self.done[evaluation.attempt] = (self.begun[evaluation.attempt], evaluation)

    def history(self, run_id):
        return [self.done[number] for number in sorted(self.done)]


class Watcher:
    """Remembers what an observer is told."""

    def __init__(self):
        self.started = []
        self.lines = []

    def evaluation_started(self, attempt):
        self.started.append(attempt.number)

    def evaluation_finished(self, trial, budget_left, best):
        self.lines.append((trial, budget_left, best))


def speed(knobs):
    """Ratio to AR: one optimum, at suffix, length 12, depth 32, probability 0.3, packed, 4 threads (2.53)."""
    length = knobs.get("draft_length", 1)
    if knobs["drafter"] == "none":
        base = 1.0
    elif knobs["drafter"] == "ngram":
        base = 1.0 + 0.5 * math.exp(-((math.log2(length / 6)) ** 2) / 3) - 0.04 * abs(knobs["ngram_max"] - 4)
    else:
        near = (math.log2(length / 12)) ** 2 / 3 + (math.log2(knobs["suffix_depth"] / 32)) ** 2 / 6
        base = 1.0 + 0.9 * math.exp(-near - 4 * (knobs["min_probability"] - 0.3) ** 2)
    base *= 1.33 if knobs["linear_path"] == "packed" else 1.0
    return base * (0.8 + 0.05 * knobs["threads"])


class Landscape:
    """Evaluates by a function; the seconds that it says are charged to its clock."""

    def __init__(self, function=speed, clock=None, spread=0.01, failing=lambda knobs: None):
        self.function = function
        self.clock = clock or ReplayClock()
        self.spread = spread
        self.failing = failing

    def evaluate(self, attempt, stage):
        knobs = attempt.genome.knobs
        outcome = self.failing(knobs) or Outcome.OK
        seconds = 1.0 + 0.05 * len(str(knobs)) / 100
        self.clock.charge(seconds)
        ratio = self.function(knobs) * (1 + 0.005 * random.Random(attempt.genome.id + stage).uniform(-1, 1))
        return evaluation(attempt, ratio, outcome=outcome, stage=stage, seconds=seconds, spread=self.spread)


def evaluation(attempt, ratio, *, outcome=Outcome.OK, stage="search", seconds=1.0, spread=0.01, gap=None):
    knobs = attempt.genome.knobs
    width = float(knobs.get("draft_length", 0)) / 4
    gap = gap or ("waste" if width > 3 else "host" if knobs.get("linear_path") == "packed" else "acceptance")
    ok = outcome is Outcome.OK
    score = Score(
        ratio_ar=ratio,
        ratio_stock=ratio / 1.5,
        spread=spread,
        tau=2.0,
        tokens_per_second=30.0 * ratio,
        ar_tokens_per_second=30.0,
        stock_tokens_per_second=45.0,
    )
    return Evaluation(
        attempt=attempt.number,
        run_id=attempt.run_id,
        stage=stage,
        outcome=outcome,
        reason="" if ok else "as the test wants it",
        seconds=seconds,
        score=score if ok else None,
        descriptor=Descriptor(regime=1, gap=gap, width=width) if ok else None,
    )


def trial(number, ratio=1.0, *, space=SPACE, knobs=None, operator="random", parents=(), **of_evaluation):
    genome = Genome.complete(space, knobs or {})
    attempt = Attempt(
        number=number, run_id="run", genome=genome, parents=parents, operator=operator, rng_state="[3,[],null]"
    )
    return Trial(attempt=attempt, evaluation=evaluation(attempt, ratio, **of_evaluation))


def random_history(space, count, seed=0, function=speed):
    """Distinct random trials of a landscape."""
    rng = random.Random(seed)
    found = {}
    while len(found) < count:
        genome = Genome.of(space.sample(rng))
        found.setdefault(genome.id, genome)
    return [
        trial(number, function(genome.knobs), space=space, knobs=genome.knobs)
        for number, genome in enumerate(found.values(), 1)
    ]


def proposer(space=SPACE, operators=None):
    return Proposer(space, operators if operators is not None else all_operators(cell_of), cell_of)


def search(
    store=None, landscape=None, *, evals=40, seconds=1e6, seed=0, stop=lambda: False, space=SPACE, operators=None
):
    """Runs a session with its own clock, as a new process would."""
    store = store if store is not None else MemoryStore()
    landscape = replace_clock(landscape or Landscape())
    return run_search(
        store=store,
        run=run_record(seed),
        evaluator=landscape,
        proposer=proposer(space, operators),
        budget=Budget(max_evals=evals, seconds=seconds, clock=landscape.clock, started=0.0),
        observer=Watcher(),
        stop=stop,
    )


def replace_clock(landscape):
    return Landscape(landscape.function, ReplayClock(), landscape.spread, landscape.failing)


def sequence(result):
    return [(t.attempt.number, t.attempt.genome.id, t.attempt.operator, t.evaluation.stage) for t in result.trials]


def stop_after(count):
    """A stop signal that is raised while evaluation number `count` of the session runs."""
    seen = iter(range(10**9))
    return lambda: next(seen) >= count


@st.composite
def spaces(draw):
    """Small spaces: a switch with conditional knobs, numbers of each kind, an ordered pair, single values."""
    low = draw(st.integers(1, 4))
    integer = IntDomain(low=low, high=low + draw(st.integers(0, 9)), log=draw(st.booleans()))
    grid = FloatDomain(low=0.0, high=draw(st.integers(0, 4)) * 0.25, step=0.25)
    pair = IntDomain(low=1, high=draw(st.integers(1, 4)))
    on = Condition(name="switch", values=("a",))
    optional = [
        Knob(name="number", domain=integer, default=low, gap="waste", help="", when=draw(st.sampled_from([None, on]))),
        Knob(name="grid", domain=grid, default=0.0, gap="host", help=""),
        Knob(name="sizes", domain=ChoiceDomain(options=(64, 128)), default=64, gap="host", help="", when=on),
        Knob(name="flag", domain=ChoiceDomain(options=(False, True)), default=False, gap="weights", help=""),
    ]
    chosen = [knob for knob in optional if draw(st.booleans())]
    switch = Knob(name="switch", domain=ChoiceDomain(options=("a", "b")), default="a", gap="acceptance", help="")
    ends = [Knob(name=name, domain=pair, default=1, gap="acceptance", help="") for name in ("low", "high")]
    with_pair = draw(st.booleans())
    return KnobSpace(
        version=1,
        knobs=(switch, *chosen, *(ends if with_pair else ())),
        orders=(Order(low="low", high="high"),) if with_pair else (),
    )
