"""What the README tells people to type exists, and the continuous integration types the same."""

import re
import shlex

import pytest
from house_sources import ROOT

import run
from space.deployment import shipped_names

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [
    line for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", README, re.S | re.M) for line in block.splitlines()
]
COMMANDS = [
    part.partition("#")[0].strip() for line in LINES for part in line.split(" && ") if part.startswith("python run.py")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_can_be_parsed(command):
    words = shlex.split(command)[2:]
    assert words[-1] == "--help" or run.read_command(words)


def test_the_readme_shows_every_command():
    assert {run.split_command(shlex.split(command)[2:])[0] for command in COMMANDS} == set(run.COMMANDS)


def test_every_option_is_in_the_readme():
    text = (ROOT / "run.py").read_text(encoding="utf-8")
    options = set(re.findall(r'"(--[a-z-]+)"', text)) - {"--help"}
    assert {option for option in options if option not in README} == set()


def test_the_two_commands_for_a_fresh_machine():
    fresh = [line for line in LINES if line.startswith("python3 -m venv")]
    assert len(fresh) == 2
    assert fresh[0].endswith("&& python run.py --deployment cpu-smollm2")
    assert fresh[1].endswith("&& python -m pytest")
    assert "cpu-smollm2" in shipped_names()


def test_the_continuous_integration_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert "pytest" not in script.replace("pytest's", ""), "the test command stands in the README alone"
