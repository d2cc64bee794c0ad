"""A deployment on the tiny checkpoint: 16 short prompts in four groups, answers of a few tokens."""

import json
from pathlib import Path

GROUPS = {
    "chat": "Tell me about {}.",
    "code": "def {}(a, b): return",
    "maths": "What is {} plus 7?",
    "extraction": "List the names in: {}, Bob, {}",
}
WORDS = ("rivers", "stones", "apples", "clouds")


def write_prompts(path: Path) -> Path:
    """Writes the prompts file: four prompts a group."""
    lines = [
        {"id": f"{group}-{word}", "group": group, "messages": [{"role": "user", "content": text.format(word, word)}]}
        for group, text in GROUPS.items()
        for word in WORDS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_deployment(
    folder: Path,
    checkpoint: Path,
    *,
    name: str = "tiny",
    max_tokens: int = 24,
    concurrency: int = 1,
    temperature: float = 0,
) -> Path:
    """Writes prompts and TOML into a folder; returns the TOML's path."""
    prompts = write_prompts(folder / "prompts.jsonl")
    path = folder / f"{name}.toml"
    path.write_text(
        f"""name = "{name}"
description = "a tiny model with random weights"

[target]
source = "{checkpoint}"
max_context = 256

[hardware]
device = "cpu"

[workload]
prompts = "{prompts}"
max_tokens = {max_tokens}
concurrency = [{concurrency}]
temperature = {temperature}

[budget]
seconds = 120
max_evals = 6
""",
        encoding="utf-8",
    )
    return path
