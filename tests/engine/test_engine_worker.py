"""A real worker process on the tiny checkpoint: every line in gets one line out, and nothing else stands there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_helpers import some_prompt

from engine.base import Request, Settings
from engine.protocol import AnyReply

ROOT = Path(__file__).parents[2]
PROMPT = some_prompt(20, seed=2)
GENERATE = {"kind": "generate", "knobs": {"drafter": "none"}, "prompt": PROMPT, "max_tokens": 12, "stop_ids": []}
FORCE = {"kind": "force", "prompt": PROMPT, "tokens": PROMPT[:3]}
NOISE = {"kind": "noise", "prompt": PROMPT, "tokens": PROMPT[:5], "row_counts": [2, 4], "linear_path": "plain"}


def run_worker(folder, role, lines, extra_path=None, module="engine.worker", max_context=256):
    """Gives a worker all its lines and the end of input; returns its replies, exit code and standard error."""
    command = [sys.executable, "-m", module, "--role", role, "--model", str(folder)]
    path = os.pathsep.join(filter(None, [str(ROOT), extra_path]))
    process = subprocess.run(
        [*command, "--max-context", str(max_context), "--threads", "1"],
        input=b"".join((json.dumps(line).encode() if isinstance(line, dict) else line) + b"\n" for line in lines),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    replies = [AnyReply.model_validate_json(b'{"body":' + line + b"}").body for line in process.stdout.splitlines()]
    return replies, process.returncode, process.stderr.decode()


def test_a_stock_worker_answers_everything(tiny_folder, decoder):
    answer = decoder.generate(Request(prompt=PROMPT, max_tokens=12), Settings())
    lines = [
        GENERATE,
        {**GENERATE, "knobs": {"drafter": "suffix", "draft_length": 8}},
        {"kind": "force", "prompt": PROMPT, "tokens": answer.tokens},
        NOISE,
        {**GENERATE, "stop_ids": [answer.tokens[0]]},
    ]
    (ready, ar, speculative, forced, noise, stopped), code, errors = run_worker(tiny_folder, "stock", lines)
    assert code == 0, errors
    assert ready.kind == "ready"
    assert ready.stop_ids == (257,)
    assert ar.tokens == answer.tokens
    assert ar.finish == "length"
    assert ar.drafted == ar.accepted == (0,) * 11
    assert len(ar.draft_seconds) == len(ar.verify_seconds) == 11
    assert len(speculative.tokens) == 12
    assert len(speculative.drafted) + sum(speculative.accepted) == 11
    assert forced.choices == answer.tokens
    assert forced.margins == (0.0,) * 12
    assert noise.compared == len(noise.shifts) == 15  # two row counts and a pass of trees, five tokens each
    assert stopped.tokens == answer.tokens[:1]
    assert stopped.finish == "stop"


def test_a_candidate_survives_what_it_cannot_answer(tiny_folder):
    refused = [
        (FORCE, "a candidate worker does not answer 'force': it must not judge itself"),
        (NOISE, "a candidate worker does not answer 'noise'"),
        ({**GENERATE, "knobs": {"beams": 4}}, "the engine has no knob beams"),
        ({**GENERATE, "knobs": {"drafter": "sufix"}}, "did you mean 'suffix'"),
        ({**GENERATE, "knobs": {"linear_path": "int8"}}, "linear_path 'int8': allowed is plain or packed"),
        ({**GENERATE, "prompt": []}, "the prompt is empty"),
        ({**GENERATE, "max_tokens": 1000}, "max_context allows 256"),
        ({**GENERATE, "prompt": [1, 5000]}, "IndexError"),
        ({**GENERATE, "colour": 1}, "Extra inputs are not permitted"),
        ({"kind": "stop"}, "kind"),
        (b"garbage", "Invalid JSON"),
        (b"", "Invalid JSON|Field required|EOF"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'{"kind":"generate"},"x":{}', "ValidationError"),
    ]
    replies, code, errors = run_worker(tiny_folder, "candidate", [*(line for line, _ in refused), GENERATE])
    assert code == 0, errors
    assert [reply.kind for reply in replies] == ["ready", *["failed"] * len(refused), "generated"]
    for (line, message), reply in zip(refused, replies[1:], strict=False):
        assert reply.outcome == "runtime", line
        assert any(part in reply.reason for part in message.split("|")), (line, reply.reason)


def test_what_prints_inside_a_worker_does_not_reach_its_replies(tiny_folder, tmp_path):
    (tmp_path / "chatty_worker.py").write_text(
        "import os, subprocess, sys\n"
        "import engine.worker as worker\n"
        "inner = worker.Worker.answer\n"
        "def answer(self, line):\n"
        "    print('printed', flush=True)\n"
        "    os.write(1, b'written\\n')\n"
        "    subprocess.run(['echo', 'echoed'])\n"
        "    return inner(self, line)\n"
        "worker.Worker.answer = answer\n"
        "sys.exit(worker.main())\n"
    )
    replies, code, errors = run_worker(tiny_folder, "candidate", [GENERATE], str(tmp_path), "chatty_worker")
    assert code == 0
    assert [reply.kind for reply in replies] == ["ready", "generated"]
    assert all(word in errors for word in ("printed", "written", "echoed"))


@pytest.mark.parametrize(
    ("folder", "max_context", "message"),
    [("nowhere", 256, "cannot read nowhere/config.json"), (None, 4096, "max_context 4096: this model has 1024")],
)
def test_a_worker_that_cannot_start_says_why(tiny_folder, folder, max_context, message):
    replies, code, _ = run_worker(folder or tiny_folder, "candidate", [GENERATE], max_context=max_context)
    assert code == 1
    assert [reply.kind for reply in replies] == ["failed"]
    assert message in replies[0].reason


def test_a_worker_answers_several_requests_at_once(tiny_folder):
    asked = [{"prompt": PROMPT[i:], "max_tokens": 9 + i, "stop_ids": []} for i in range(3)]
    batch = {"kind": "generate_batch", "requests": asked, "concurrency": 2}
    knobs = {"drafter": "suffix", "draft_length": 4, "packing": "survival", "node_budget": 3}
    lines = [
        {**batch, "knobs": knobs},
        *({"kind": "generate", "knobs": {"drafter": "none"}, **request} for request in asked),
        {**batch, "knobs": {**knobs, "packing": "magic"}},
        {**batch, "knobs": knobs, "concurrency": 0},
    ]
    (_, together, *alone, magic, none), code, errors = run_worker(tiny_folder, "candidate", lines)
    assert code == 0, errors
    assert [answer.tokens for answer in together.answers] == [answer.tokens for answer in alone]
    passes = together.passes
    assert max(passes.requests) == 2
    assert max(passes.nodes) <= 3
    assert sum(passes.rows) == sum(passes.requests) + sum(sum(answer.drafted) for answer in together.answers)
    assert sum(passes.prefill_rows) == sum(len(request["prompt"]) for request in asked)
    shares = [sum(answer.verify_seconds) for answer in together.answers]
    assert sum(shares) == pytest.approx(sum(passes.verify_seconds))
    assert "packing 'magic' is not there; known: all, survival" in magic.reason
    assert "slots 0: a batch has at least one" in none.reason
