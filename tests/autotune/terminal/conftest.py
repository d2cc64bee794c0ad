"""A small recorded run to print."""

import io

import pytest
from rich.console import Console

from archive.base import Attempt, Evaluation, Forced, Sample, Score
from autotune.base import Trial
from autotune.terminal import make_console
from space.genome import Genome
from space.knobs import ChoiceDomain, Condition, IntDomain, Knob, KnobSpace
from space.outcome import Outcome


class Printed:
    """A console and what it printed."""

    def __init__(self, console: Console, stream: io.StringIO) -> None:
        self.console = console
        self.stream = stream

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@pytest.fixture
def plain():
    stream = io.StringIO()
    return Printed(make_console(stream), stream)


@pytest.fixture
def tty():
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, width=100, highlight=False, markup=False, color_system="standard"
    )
    return Printed(console, stream)


@pytest.fixture
def space():
    """A space of the tests' own: output must not change with the catalog."""

    def whole(name, high, default, when=None):
        return Knob(name=name, domain=IntDomain(low=1, high=high), default=default, gap="g", help="h", when=when)

    drafter = Knob(
        name="drafter",
        domain=ChoiceDomain(options=("none", "ngram", "suffix")),
        default="ngram",
        gap="g",
        help="h",
    )
    drafts = Condition(name="drafter", values=("ngram", "suffix"))
    suffix = Condition(name="drafter", values=("suffix",))
    return KnobSpace(
        1,
        (
            drafter,
            whole("draft_length", 32, 6, drafts),
            whole("suffix_depth", 64, 24, suffix),
            whole("threads", 2, 2),
        ),
    )


@pytest.fixture
def stock(space):
    return Genome.complete(space, {"drafter": "ngram", "draft_length": 6})


@pytest.fixture
def trial(space):
    def _trial(number, knobs, outcome=Outcome.OK, ratio_ar=1.5, reason="", stage="search", forced=None, samples=()):
        attempt = Attempt(
            number=number,
            run_id="r1",
            genome=Genome.complete(space, knobs),
            parents=(),
            operator="tpe",
            rng_state="",
        )
        score = Score(
            ratio_ar=ratio_ar,
            ratio_stock=ratio_ar / 1.25,
            spread=0.021,
            tau=2.314,
            tokens_per_second=30 * ratio_ar,
            ar_tokens_per_second=30.0,
            stock_tokens_per_second=37.5,
        )
        ok = outcome is Outcome.OK
        evaluation = Evaluation(
            attempt=number,
            run_id="r1",
            stage=stage,
            outcome=outcome,
            reason=reason,
            seconds=2.4,
            forced=forced or (Forced(tokens=320, exact=319, near_ties=1) if ok else None),
            score=score if ok else None,
            samples=samples,
        )
        return Trial(attempt=attempt, evaluation=evaluation)

    return _trial


@pytest.fixture
def sample():
    return Sample(
        prompt_id="chat-1",
        role="candidate",
        repeat=0,
        tokens=64,
        seconds=1.25,
        steps=30,
        drafted=180,
        accepted=34,
        draft_seconds=0.01,
        verify_seconds=1.2,
    )
