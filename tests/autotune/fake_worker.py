"""A worker that misbehaves as its --model says; `python -m fake_worker`. Imports no torch, so it starts at once."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.protocol import AnyRequest, Failed, Generated, Ready

ANSWER = Generated(tokens=(1, 2), finish="length", drafted=(0,), accepted=(0,), draft_seconds=(0,), verify_seconds=(0,))


def say(message) -> None:
    sys.stdout.write((message if isinstance(message, str) else message.model_dump_json()) + "\n")
    sys.stdout.flush()


def hang(folder: Path) -> None:
    """Starts a child, leaves both process ids in the folder, and never answers."""
    child = subprocess.Popen(["sleep", "600"])
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
    time.sleep(600)


def die() -> None:
    sys.stderr.write("first line\nthe last line\n")
    sys.exit(3)


def flood() -> None:
    """Answers without an end."""
    while True:
        sys.stdout.write("x" * 65536)


def close_output() -> None:
    """Says nothing any more, and lives on."""
    os.close(1)
    time.sleep(600)


def hold_output() -> None:
    """Ends, and leaves a child behind that holds the pipe open."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.exit(4)


ACTIONS = {
    "flood": flood,
    "close": close_output,
    "hold": hold_output,
    "deaf": lambda: (say(ANSWER), time.sleep(600)),
    "die": die,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "garbage": lambda: say("not json"),
    "other": lambda: say(Ready(torch="x", stop_ids=())),
    "refuse": lambda: say(Failed(outcome="oom", reason="too big")),
    "twice": lambda: (say(ANSWER), say(ANSWER)),
    "well": lambda: say(ANSWER),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--role", "--model", "--max-context", "--threads"):
        parser.add_argument(name)
    folder = Path(parser.parse_args().model)
    if folder.name == "unloadable":
        say(Failed(outcome="runtime", reason="cannot read model file"))
        sys.exit(1)
    say(Ready(torch="none", stop_ids=(7,)))
    for line in sys.stdin:
        behaviour = str(AnyRequest.model_validate_json(f'{{"body":{line}}}').body.knobs["drafter"])
        hang(folder) if behaviour == "hang" else ACTIONS[behaviour]()


if __name__ == "__main__":
    main()
