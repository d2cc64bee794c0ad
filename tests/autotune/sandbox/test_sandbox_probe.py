"""Which level is taken, and what a machine without a better one is told."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from confining import LIMITS

from autotune import doctor
from autotune.sandbox import probe
from autotune.sandbox.base import Level, View
from autotune.sandbox.levels import Bubblewrap, RlimitsOnly
from autotune.sandbox.probe import Tried
from autotune.sandbox.process import run_confined
from autotune.sandbox.visible import PASSED_ON, environment, read_only

ABSENT = Tried(level=Level.BUBBLEWRAP, sandbox=None, why_not="bwrap is not installed", remedy="install it")
NO_LANDLOCK = Tried(level=Level.NAMESPACES, sandbox=None, why_not="no Landlock", remedy="a kernel of 6.12")


def test_what_does_not_confine_is_not_believed():
    leak = probe.leaks(RlimitsOnly())
    assert leak.startswith("it lets through: ")
    for way in ("a file outside", "a file to write", "TCP"):
        assert way in leak


@pytest.mark.parametrize(
    ("script", "why_not", "remedy"),
    [
        ('echo "bwrap: Unknown option --size" >&2; exit 1', "Unknown option --size", "install bubblewrap 0.8 or later"),
        ('echo "setting up uid map: Permission denied" >&2; exit 1', "uid map: Permission denied", "user namespaces"),
        # A bubblewrap that confines nothing: runs what follows the double dash.
        (
            'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
            "it lets through: a file outside",
            "user namespaces",
        ),
    ],
)
def test_a_bubblewrap_that_does_not_work(monkeypatch, tmp_path, script, why_not, remedy):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(probe, "which", lambda name: str(program))
    tried = probe._bubblewrap()
    assert tried.sandbox is None
    assert why_not in tried.why_not
    assert remedy in tried.remedy


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(probe, "which", lambda name: None)
    assert probe._bubblewrap() == Tried(
        level=Level.BUBBLEWRAP,
        sandbox=None,
        why_not="bwrap is not installed",
        remedy="install bubblewrap 0.8 or later: apt-get install bubblewrap",
    )
    monkeypatch.setattr(probe, "landlock_abi", lambda: 3)
    assert probe._namespaces().why_not == "Landlock has version 3 here, 6 is needed"
    monkeypatch.setattr(probe, "landlock_abi", lambda: 0)
    assert probe._namespaces().why_not == "this kernel has no Landlock"


def test_the_first_level_that_confines_is_taken(monkeypatch):
    sound = Tried(level=Level.NAMESPACES, sandbox=RlimitsOnly())
    probe.probed.cache_clear()
    monkeypatch.setattr(probe, "_PROBES", (lambda: ABSENT, lambda: sound, lambda: 1 / 0))
    try:
        assert probe.probed() == (ABSENT, sound)
        assert probe.best_sandbox() is sound.sandbox
    finally:
        probe.probed.cache_clear()


@pytest.mark.parametrize(
    ("tried", "value"),
    [
        ((Tried(level=Level.BUBBLEWRAP, sandbox=Bubblewrap("x")),), "bubblewrap"),
        (
            (ABSENT, Tried(level=Level.NAMESPACES, sandbox=RlimitsOnly())),
            "namespaces+landlock (better, bubblewrap: bwrap is not installed; install it)",
        ),
        (
            (ABSENT, NO_LANDLOCK),
            "none: code patches are refused (or run unconfined with --unsafe-no-sandbox) (better, bubblewrap: bwrap is "
            "not installed; install it; or namespaces+landlock: no Landlock; a kernel of 6.12)",
        ),
    ],
)
def test_doctor_tells_the_level_and_how_to_get_a_better_one(monkeypatch, tried, value):
    monkeypatch.setattr(doctor, "probed", lambda: tried)
    [check] = [check for check in doctor.checks() if check.name == "sandbox"]
    assert (check.value, check.ok) == (value, True)


def test_the_environment_is_an_allow_list(tmp_path):
    view = View(code=tmp_path / "code", read_only=(), scratch=tmp_path / "scratch")
    outside = dict.fromkeys(PASSED_ON, "kept") | {"AWS_SECRET_ACCESS_KEY": "s", "PYTHONSTARTUP": "s", "PATH": "s"}
    inside = environment(view, outside)
    assert {name for name, value in inside.items() if value == "kept"} == set(PASSED_ON)
    assert "s" not in inside.values()
    assert environment(view, {}).keys() == inside.keys() - set(PASSED_ON)


def test_only_what_is_needed_is_shown(tmp_path, monkeypatch):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f".::{libraries}:{tmp_path}:/no/such")
    (libraries / "libcuda.so.1").touch()
    view = View(code=tmp_path / "code", read_only=(tmp_path / "model",), scratch=tmp_path / "scratch")
    for folder in (view.code, *view.read_only, view.scratch):
        folder.mkdir()
    shown = [Path(path) for path in read_only(view)]
    assert {view.code, *view.read_only, libraries} <= set(shown)
    assert not {tmp_path, Path.cwd()} & set(shown), "not what stands in the search path by accident"
    home, etc = Path.home(), Path("/etc")
    assert not {Path("/"), home, etc, Path("/tmp"), Path("/run"), Path("/var"), view.scratch} & set(shown)
    assert {path.name for path in shown if etc in path.parents} <= {
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "alternatives",
        "localtime",
    }
    assert all(os.path.exists(path) for path in shown)


@pytest.mark.gpu
def test_cuda_works_inside(sandbox, workspace):
    """A GPU is of use inside at every level: tensors, and a kernel that is compiled there."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    code = (
        "import torch\nx = torch.ones(1024, device='cuda')\n"
        "print(int(torch.compile(lambda y: (y * 2).sum())(x)), end='')\n"
    )
    roomy = replace(LIMITS, wall=300.0, cpu=3000.0, memory=32 << 30)
    result = run_confined([sys.executable, "-c", code], sandbox, workspace.view, roomy)
    assert result.output == "2048", result
