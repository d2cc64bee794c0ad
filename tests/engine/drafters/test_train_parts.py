import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.drafters.dflash import DFlashSession
from engine.drafters.train.corpus import Corpus, Tapped
from engine.drafters.train.evaluate import count_steps, evaluate, ngram_accepted, score
from engine.drafters.train.muon import Matrix, Muon, orthogonalise
from engine.drafters.train.options import TrainOptions
from engine.drafters.train.prompts import read_evaluation, read_seeds, sample_turns
from engine.drafters.train.seeds import SEEDS
from engine.drafters.train.target import Target
from engine.drafters.train.target_files import Chat, load_target
from engine.drafters.train.trainer import new_drafter
from space.errors import EngineError, InputError
from space.prompts import Prompt
from tests.engine.drafters import tiny

CPU = torch.device("cpu")
OPTIONS = TrainOptions(layers=1, taps=(0, 2), block=4, markov_rank=4, draft_vocabulary=200)
DRAFTED = torch.randperm(256, generator=torch.Generator().manual_seed(3))[:200]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Chat]:
    return load_target(tiny.write_tiny_target(tmp_path_factory.mktemp("t"), tiny.tiny_weights()), CPU, torch.float32)


def test_orthogonalise_brings_singular_values_near_one() -> None:
    stack = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(stack).float())
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_muon_updates_have_adamw_size_and_lower_the_loss() -> None:
    weights = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((8, 8), (16, 8), (8, 16), (8, 8))]
    muon = Muon([Matrix(w) for w in weights], decay=0.0)
    before = [w.detach().clone() for w in weights]
    for _ in range(2):
        sum(w.square().sum() for w in weights).backward()
        loss = sum(float(w.detach().square().sum()) for w in weights)
        muon.step(0.01)
        for w in weights:
            w.grad = None
    assert sum(float(w.detach().square().sum()) for w in weights) < loss
    for w, old in zip(weights, before, strict=True):
        assert 0.2 < (w - old).square().mean().sqrt() / 0.01 / 2 / 0.2 < 1.3


def test_muon_input_scale_is_training_in_scaled_coordinates() -> None:
    scale = torch.tensor([100.0, 1.0, 0.01, 3.0])
    plain = torch.nn.Parameter(torch.randn(6, 4))
    scaled = torch.nn.Parameter(plain.detach() / scale)
    inputs = torch.randn(32, 4)
    a, b = Muon([Matrix(plain)]), Muon([Matrix(scaled, scale)])
    for _ in range(5):
        plain.grad = scaled.grad = None
        (inputs @ plain.T).tanh().square().sum().backward()
        ((inputs * scale) @ scaled.T).tanh().square().sum().backward()
        a.step(0.1)
        b.step(0.1)
    torch.testing.assert_close(scaled * scale, plain, rtol=0.05, atol=0.02)


def test_batch_holds_what_each_anchor_may_see(pair: tuple[Target, Chat]) -> None:
    target, _ = pair
    prompts, answers = [[1, 2, 3], [4, 5]], [[6, 7, 8], [9, 10, 11, 12, 13, 14]]
    corpus = Corpus.from_texts(prompts, answers, CPU)
    tapped = Tapped(corpus, target, (0, 2))
    alone = target.hidden(torch.tensor([prompts[1] + answers[1]]), (0, 2))[0]
    torch.testing.assert_close(tapped.taps[6:], alone, rtol=1e-4, atol=1e-5)
    batch = tapped.batch(torch.tensor([1, 0]), torch.tensor([[2, 6], [3, 4]]), 4, corpus.width)
    assert batch.anchors.tolist() == [[9, 13], [6, 7]]
    assert batch.labels[0].tolist()[0] == [10, 11, 12]
    assert batch.previous[0].tolist()[0] == [9, 10, 11]
    assert batch.labels[0, 1, 0] == 14
    assert batch.inside.tolist() == [[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [1, 0, 0]]]
    assert batch.positions[0].tolist() == [[2, 3, 4, 5], [6, 7, 8, 9]]
    seen = batch.mask[:, 0] == 0
    for text, anchors in enumerate(((2, 6), (3, 4))):
        for row in range(8):
            context, own = seen[text, row, : corpus.width], seen[text, row, corpus.width :]
            assert context.nonzero().flatten().tolist() == list(range(anchors[row // 4]))
            assert own.nonzero().flatten().tolist() == [row // 4 * 4 + i for i in range(4)]
    torch.testing.assert_close(batch.taps[0, :8], tapped.taps[6:])


def test_anchors_cover_each_answer_and_stay_inside(pair: tuple[Target, Chat]) -> None:
    corpus = Corpus.from_texts([[1, 2], [3, 4]], [[5, 6], [7] * 40], CPU)
    tapped = Tapped(corpus, pair[0], (0, 2))
    rows, anchors = tapped.draw(300, 13, torch.Generator().manual_seed(0))
    last = corpus.lengths[rows] - 2  # an anchor has a label
    assert torch.all(anchors >= corpus.firsts[rows, None])
    assert torch.all(anchors <= last[:, None])
    long = anchors[rows == 1]
    assert len(long) > 250  # drawn by length
    assert set(long.flatten().tolist()) == set(range(2, 41))
    assert torch.all(long.diff(dim=1) > 0)


def test_corpus_survives_a_round_trip_and_splits(tmp_path: Path) -> None:
    corpus = Corpus.from_texts([[1], [2, 3], [4], [9]], [[5, 6], [7, 8, 9], [], [1, 2]], CPU)
    assert len(corpus) == 3  # the text without an answer drafts nothing
    corpus.save(tmp_path / "c.safetensors")
    train, held = Corpus.load(tmp_path / "c.safetensors", CPU).split(1)
    assert (len(train), len(held), train.answer_tokens, held.tokens.tolist()) == (2, 1, 5, [9, 1, 2])
    with pytest.raises(EngineError, match="no prompt got an answer"):
        Corpus.from_texts([[1]], [[2]], CPU)


def test_the_most_used_answer_tokens_come_first() -> None:
    corpus = Corpus.from_texts([[9] * 7, [8]], [[5, 6, 5], [6, 5, 2, 3]], CPU)
    assert corpus.frequent(4, 12).tolist() == [5, 6, 2, 3]
    assert len(corpus.frequent(12, 12)) == 12


def test_step_count_and_ngram() -> None:
    assert count_steps([0] * 5, 5) == 4
    assert count_steps([3, 0, 0, 0, 0], 5) == 1
    assert count_steps([1, 9, 9, 0, 0, 0], 6) == 2
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 7]
    assert ngram_accepted(text, 6) == [0, 4, 3, 2, 1, 0, 0]  # after 1: 2 3 4 5 hold, then 6 is wrong


def drafted(drafter_seed: int, pair: tuple[Target, Chat]) -> tuple[object, list[list[int]], list[list[int]]]:
    target, _ = pair
    scale = torch.full((64,), float(target.embedding.square().mean().sqrt()))
    model = new_drafter(replace(OPTIONS, seed=drafter_seed), target, scale, DRAFTED)
    # An untrained drafter accepts nothing: with the mask's row equal to what a text repeats, it accepts a part.
    prompts, answers = [[5, 6, 7], [5, 9, 8, 7]], []
    generator = torch.Generator().manual_seed(drafter_seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.3)
    for prompt in prompts:
        taps = target.hidden(torch.tensor([prompt]), (0, 2))[0]
        session = DFlashSession(model, target.embedding, target.head[DRAFTED], DRAFTED)
        session.extend(taps)
        answer = [11]
        while len(answer) < 24:  # text that follows the drafts half of the time
            answer += session.propose(answer[-1], 2, candidates=0)[: 1 + len(answer) % 2]
            answer.append(len(answer) * 7 % 250)
            taps = target.hidden(torch.tensor([prompt + answer]), (0, 2))[0]
            session.extend(taps[session.length : len(prompt) + len(answer) - 1])
        answers.append(answer)
    return model, prompts, answers


@pytest.mark.parametrize("seed", [0, 1])
def test_offline_score_equals_a_loop_of_steps(pair: tuple[Target, Chat], seed: int) -> None:
    target, _ = pair
    model, prompts, answers = drafted(seed, pair)
    steps = made = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        taps = target.hidden(torch.tensor([prompt + answer]), (0, 2))[0]
        session, done = DFlashSession(model, target.embedding, target.head[DRAFTED], DRAFTED), 1
        session.extend(taps[: len(prompt)])
        while done < len(answer):
            drafts, true = session.propose(answer[done - 1], 3, candidates=0), answer[done:]
            good = 0
            while good < min(len(drafts), len(true)) and drafts[good] == true[good]:
                good += 1
            commit = min(good + 1, len(true))
            session.extend(taps[session.length : session.length + commit])
            done, steps = done + commit, steps + 1
        made += len(answer) - 1
    found = score(model, target, prompts, answers)
    assert found.tau == pytest.approx(made / steps)
    assert 1.1 < found.tau < 4  # partly accepted, else the test says little
    assert found.tokens == sum(map(len, answers))
    assert all(0 <= a <= b <= 1 for a, b in zip(found.coverage[0], found.coverage[-1], strict=True))


def test_evaluation_needs_enough_prompts(pair: tuple[Target, Chat]) -> None:
    target, chat = pair
    model = new_drafter(OPTIONS, target, torch.ones(64), DRAFTED)
    with pytest.raises(InputError, match="evaluation set few has 0 prompts; --evaluate-prompts is 2"):
        evaluate(model, target, chat, {"few": ()}, per_set=2)


EVALUATION = '{"turns": ["Janet has sixteen ducks that lay eggs every single day of the week, and sells them all"]}\n'


def test_evaluation_sets_are_refused_as_training_text(tmp_path: Path) -> None:
    test = tmp_path / "test.jsonl"
    test.write_text(EVALUATION)
    copy, seeds = tmp_path / "copy.txt", tmp_path / "seeds.txt"
    copy.write_text(EVALUATION)
    for path in (test, copy):
        with pytest.raises(InputError, match="is the evaluation set"):
            read_seeds(path, [test])
    seeds.write_text("What is\nducks that lay eggs every single day of the week\n")
    with pytest.raises(InputError, match="'ducks that lay.*' is text of evaluation set test"):
        read_seeds(seeds, [test])
    seeds.write_text("What is\n```python\\ndef\n")
    assert read_seeds(seeds, [test]) == ("What is", "```python\ndef")
    seeds.write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_seeds(seeds, [])
    with pytest.raises(InputError, match="cannot read"):
        read_seeds(tmp_path / "none", [])
    with pytest.raises(InputError, match="given already"):
        read_evaluation([test, test])
    assert read_seeds(None, [test]) == SEEDS


def test_turns_that_copy_an_evaluation_prompt_are_dropped(pair: tuple[Target, Chat]) -> None:
    target, chat = pair

    def turns(evaluation: list[Prompt]) -> list[list[int]]:
        torch.manual_seed(0)
        return sample_turns(
            target,
            chat,
            seeds=["a b c d e f g h i j k l m ", "n"],
            count=6,
            max_tokens=3,
            slots=4,
            generator=random.Random(0),
            evaluation=evaluation,
        )

    free = turns([])
    copied = Prompt(id="1", group="t", messages=({"role": "user", "content": "x A b c d  e f g h i j k l m y"},))
    kept = turns([copied])
    assert len(free) > len(kept) > 0
    before, after = chat.encode(chat.before), chat.encode(chat.after)
    assert all(p[: len(before)] == before and p[-len(after) :] == after for p in free)
    assert len({tuple(p) for p in free}) == len(free)
