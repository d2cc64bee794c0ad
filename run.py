"""The front door: reads the command line, calls one function of autotune.commands, turns errors into exit codes.

Exit codes: 0 all is well, 1 the command ran and its answer is no (such as a verify that fails), 2 bad input,
130 interrupted.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autotune import options as opt
from space.deployment import shipped_names
from space.errors import InputError, SpecPilotError, nearest

EXAMPLE = "python run.py --deployment cpu-smollm2"


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of exiting, and names the nearest option."""

    def error(self, message: str) -> NoReturn:
        """Raises InputError."""
        raise InputError(f"{message}\nSee: {self.prog} --help")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses; an unknown option is refused before a missing one, since it is usually its cause."""
        known = [*re.findall(r"--[a-z-]+", self.format_usage()), "--help"]
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                self.error(f"unknown option {name}{nearest(name, known)}")
        return self.parse_args(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: what it does, its arguments, and the options that they become, field by field."""

    help: str
    add: Callable[[_Parser], None]
    options: Callable[..., Any]


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 999999999")
    return int(text)


def _archive(parser: _Parser) -> None:
    parser.add_argument("--archive", type=Path, metavar="FILE", help="archive file (default: in the home folder)")


def _benchmark(parser: _Parser) -> None:
    add = parser.add_argument
    add(
        "--benchmark",
        metavar="NAME",
        help="prompts of gsm8k, math500, humaneval, mbpp, mt-bench or a FILE.jsonl instead",
    )
    add("--benchmark-dir", type=Path, metavar="DIR", help="the folder with NAME.jsonl; nothing is downloaded")


def _benchmarks(parser: _Parser, text: str) -> None:
    add = parser.add_argument
    add("--benchmark", action="extend", nargs="+", default=[], metavar="NAME", help=text)
    add("--benchmark-dir", type=Path, metavar="DIR", help="the folder with NAME.jsonl; nothing is downloaded")


def _config(parser: _Parser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", required=True, help="a file that export wrote")
    _benchmark(parser)
    _unsafe(parser)


def _unsafe(parser: _Parser) -> None:
    described = "run patched code even where this machine cannot confine it; it may then do whatever you may"
    parser.add_argument("--unsafe-no-sandbox", dest="unsafe", action="store_true", help=described)


def _replay(parser: _Parser) -> None:
    add = parser.add_argument
    add("--deployment", metavar="NAME", default="cpu-smollm2", help="whose models (default cpu-smollm2)")
    _benchmarks(parser, "prompts of a benchmark or a FILE.jsonl, several of them, instead of the deployment's own")
    add("--prompts", type=_count, default=20, metavar="N", help="most prompts of a file, evenly spaced (default 20)")
    add("--max-tokens", type=_count, default=128, metavar="N", help="longest answer in tokens (default 128)")


def _deployment(parser: _Parser) -> None:
    shipped = f"shipped: {', '.join(shipped_names())}; or the path of a .toml file"
    parser.add_argument("--deployment", metavar="NAME", required=True, help=shipped)


def _tune(parser: _Parser) -> None:
    add = parser.add_argument
    _deployment(parser)
    add("--budget", dest="seconds", type=opt.parse_duration, metavar="TIME", help="wall time: 90s, 10m, 1h30m")
    add("--max-evals", type=_count, metavar="N", help="most evaluations")
    add("--seed", type=_seed, default=0, metavar="N", help="seed of the search (default 0)")
    add(
        "--set",
        dest="settings",
        action="append",
        default=[],
        type=opt.parse_setting,
        metavar="KNOB=VALUE",
        help="hold a knob fixed; may be repeated",
    )
    add("--dry-run", action="store_true", help="show what would be tuned, and stop")
    add("--fresh", action="store_true", help="start anew instead of continuing the last run")
    _benchmark(parser)
    _unsafe(parser)
    _archive(parser)


def _export(parser: _Parser) -> None:
    _deployment(parser)
    parser.add_argument("--to", choices=("engine",), required=True, help="who will use the file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: exports/NAME.json")
    _archive(parser)


def _show(parser: _Parser) -> None:
    parser.add_argument(
        "id", metavar="ID", help="a run, a genome, or RUN/NUMBER for one attempt; the beginning is enough"
    )
    _archive(parser)


def _top(parser: _Parser) -> None:
    parser.add_argument("--deployment", metavar="NAME", help="only this deployment")
    parser.add_argument("--limit", type=_count, default=10, metavar="N", help="how many (default 10)")
    parser.add_argument("--predicted", action="store_true", help="those of planning runs instead of measured ones")
    _archive(parser)


def _acceptance(parser: _Parser) -> None:
    add = parser.add_argument
    whose = parser.add_mutually_exclusive_group()
    named = "whose drafters (default cpu-smollm2)"
    whose.add_argument("--deployment", metavar="NAME", default="cpu-smollm2", help=named)
    whose.add_argument("--config", type=Path, metavar="FILE", help="a file that export wrote, instead of a deployment")
    _benchmarks(parser, "prompts of a benchmark or a FILE.jsonl, several of them, beside the shipped ones")
    add("--prompts", type=_count, default=20, metavar="N", help="most prompts a set, evenly spaced (default 20)")
    add("--max-tokens", type=_count, default=128, metavar="N", help="new tokens a prompt (default 128)")
    add("--draft-length", type=_count, default=7, metavar="K", help="most drafted tokens a step (default 7)")


def _doctor(parser: _Parser) -> None:
    help_text = "measure this machine, fit the cost model to real steps, and print its error (about two minutes)"
    parser.add_argument("--measure", action="store_true", help=help_text)


COMMANDS: Mapping[str, Command] = {
    "tune": Command(
        help="tune a deployment: the main job, and what is meant without a command", add=_tune, options=opt.TuneOptions
    ),
    "export": Command(help="write the best result as a configuration", add=_export, options=opt.ExportOptions),
    "archive list": Command(help="the runs that are remembered", add=_archive, options=opt.ArchiveListOptions),
    "archive show": Command(help="a run, a genome or one attempt", add=_show, options=opt.ArchiveShowOptions),
    "archive top": Command(help="the best evaluations", add=_top, options=opt.ArchiveTopOptions),
    "bench": Command(help="measure a configuration against AR and stock", add=_config, options=opt.BenchOptions),
    "bench --acceptance": Command(
        help="what every drafter has accepted, by position", add=_acceptance, options=opt.AcceptanceOptions
    ),
    "bench --replay": Command(
        help="tau of chains and trees at equal node budgets, by exact replay", add=_replay, options=opt.ReplayOptions
    ),
    "verify": Command(help="token forcing on fresh prompts", add=_config, options=opt.VerifyOptions),
    "doctor": Command(help="what this machine has and what is missing", add=_doctor, options=opt.DoctorOptions),
}


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Splits a command line into the command's name and the rest; options alone mean `tune`."""
    if words[0].startswith("-"):
        return "tune", list(words)
    for flag in ("--acceptance", "--replay"):
        if words[0] == "bench" and flag in words:
            return f"bench {flag}", [word for word in words[1:] if word != flag]
    given = " ".join(words[:2]) if words[0] == "archive" else words[0]
    if given in ("archive", "archive --help", "archive -h"):
        raise InputError("archive needs one of: list, show ID, top\nSee: python run.py archive list --help")
    if given in COMMANDS:
        return given, list(words[len(given.split()) :])
    raise InputError(
        f"unknown command {given!r}{nearest(given, COMMANDS)}\nCommands: {', '.join(COMMANDS)}. Example: {EXAMPLE}"
    )


def read_command(words: Sequence[str]) -> tuple[str, Any]:
    """Turns a command line into the command's name and its options; InputError for what cannot be read."""
    name, rest = split_command(words)
    command = COMMANDS[name]
    parser = _Parser(prog=f"python run.py {name}", description=command.help, allow_abbrev=False)
    command.add(parser)
    fields = vars(parser.read(rest))
    return name, command.options(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def _handler(name: str) -> Callable[[Any], int]:
    # Imported late: `--help` and a misspelt option must not wait for torch.
    from autotune import commands

    handlers: dict[str, Callable[[Any], int]] = {
        "tune": commands.tune,
        "export": commands.export,
        "archive list": commands.archive_list,
        "archive show": commands.archive_show,
        "archive top": commands.archive_top,
        "bench": commands.bench,
        "bench --acceptance": commands.bench_acceptance,
        "bench --replay": commands.bench_replay,
        "verify": commands.verify,
        "doctor": commands.run_doctor,
    }
    return handlers[name]


def _overview() -> None:
    lines = "\n".join(f"  {name:<20}{command.help}" for name, command in COMMANDS.items())
    description = f"SpecPilot: a search-based autotuner for speculative decoding.\n\ncommands:\n{lines}"
    epilog = f"example: {EXAMPLE}\noptions of a command: python run.py COMMAND --help"
    _Parser(
        prog="python run.py",
        usage="%(prog)s [COMMAND] [OPTIONS]",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).print_help()


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        _overview()
        return 0
    try:
        name, options = read_command(words)
        return _handler(name)(options)
    except SpecPilotError as error:
        from autotune.terminal import complain

        complain(error)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
