"""The stand-in decodes each setting once, leaves mechanisms out, and every answer is forced."""

from types import SimpleNamespace

from planned_fakes import PROMPTS, TOKENS, answer

from autotune.bench import Timed
from autotune.forcing import NoiseFloor, TokenForcing
from autotune.stand_in import StandIn, stand_in_deployment
from engine.protocol import Forced as ForcedReply
from space.deployment import find_deployment
from space.genome import Genome
from space.planned import MECHANISM_NAMES, planned_space

SPACE = planned_space()


class Requests:
    """AR answers are right; a candidate with a suffix drafter has a wrong last token."""

    max_tokens = TOKENS

    def __init__(self):
        self.candidates = []

    def warm_up_reference(self, prompt):
        self.warmed = prompt.id

    def reference(self, role, prompt):
        assert role == "ar"
        return Timed(sample=None, answer=answer({"drafter": "none"}))

    def candidate(self, genome, prompt, repeat, timeout):
        self.candidates.append((genome.knobs, prompt.id))
        right = answer(genome.knobs)
        wrong = right.model_copy(update={"tokens": (*right.tokens[:-1], 999)})
        return Timed(sample=None, answer=wrong if genome.knobs["drafter"] == "suffix" else right)


class Stock:
    """Judges every token by the right answer."""

    def force(self, request, timeout):
        margins = tuple(0.0 if token == i else 5.0 for i, token in enumerate(request.tokens))
        return ForcedReply(choices=tuple(range(len(request.tokens))), margins=margins)


class Session:
    def __init__(self):
        self.made = Requests()
        self.noise_on = []

    def prepare(self, prompts):
        return PROMPTS[prompts]

    def requests(self):
        return self.made

    def forcing(self, requests, answers):
        self.noise_on = [prompt.id for prompt, _ in answers]
        forcing = TokenForcing(Stock(), NoiseFloor(margin=0.0, flips=0, compared=9), ())
        for prompt, reply in answers:
            forcing.remember(prompt, reply)
        return forcing


def stand_in():
    session = Session()
    return StandIn(session, SimpleNamespace(search="search", confirm="confirm"), SPACE, "plain"), session


def test_genomes_that_decide_alike_are_decoded_once_and_forced():
    made, session = stand_in()
    stock = made.decode(Genome.complete(SPACE, {}), "search")
    again = made.decode(Genome.complete(SPACE, {"weight_path": "w12-skinny", "pipeline": "halves"}), "search")
    assert again is stock
    assert made.decodes == 4, "AR and stock, on both stages"
    assert [name for _, name in session.made.candidates] == [p.id for stage in PROMPTS for p in PROMPTS[stage]]
    assert (stock.forced.tokens, stock.forced.exact) == (3 * TOKENS, 3 * TOKENS)
    made.decode(Genome.complete(SPACE, {"draft_length": 3}), "search")
    made.decode(Genome.complete(SPACE, {"drafter": "none"}), "confirm")
    assert made.decodes == 5
    assert len(session.made.candidates) == 9
    assert session.noise_on == [prompt.id for prompt in PROMPTS["search"]]


def test_the_engine_gets_its_own_knobs_and_no_mechanism():
    made, session = stand_in()
    made.decode(Genome.complete(SPACE, {"weight_path": "w12-skinny"}), "search")
    knobs, _ = session.made.candidates[0]
    assert not set(knobs) & set(MECHANISM_NAMES)
    assert knobs["linear_path"] == "plain"
    assert knobs["threads"] >= 1


def test_a_wrong_token_is_a_mismatch():
    made, _ = stand_in()
    forced = made.decode(Genome.complete(SPACE, {"drafter": "suffix"}), "search").forced
    assert "999 lies 5.000 logits below" in forced.first_mismatch


def test_the_deployment_of_the_stand_in_runs_here():
    planned = find_deployment("h200-llama")
    made = stand_in_deployment(planned)
    assert made.hardware.device == "cpu"
    assert made.drafter.source == "bundled:smollm2-135m-dflash"
    assert made.workload.concurrency == (1,)
    assert made.workload.max_tokens == planned.workload.max_tokens
