"""What a candidate may use: every limit ends it with an outcome and a reason, and leaves nothing behind."""

import os
import stat
import time
from pathlib import Path

import pytest
from confining import LIMITS

from autotune.sandbox import gpu
from autotune.sandbox.base import Level
from autotune.sandbox.process import run_confined
from autotune.sandbox.watchdog import available_bytes
from autotune.sandbox.workspace import Workspace, bytes_below
from space.outcome import Outcome
from space.patch import CodeTree

MIB = 1 << 20
SPIN = "end = time.monotonic() + 20\nwhile time.monotonic() < end: pass\n"
FORKS = "import time\nfor _ in range(150):\n    if os.fork() == 0: time.sleep(30); os._exit(0)\ntime.sleep(30)"
FILES = "for n in range(100): open(f'{scratch}/{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(30)"
SHARED = "import mmap; m = mmap.mmap(-1, 400 << 20)\nfor n in range(400): m[n << 20] = 1; m.write(b'x' * (1 << 20))\n"
MANY = """
held = [bytearray(b"x" * (60 << 20))]
for _ in range(5):
    if os.fork() == 0:
        held.append(bytearray(held[0]))
        time.sleep(30)
"""


@pytest.mark.parametrize(
    ("code", "limits", "outcome", "reason"),
    [
        ("time.sleep(30)", {"wall": 1.0}, Outcome.TIMEOUT, "it ran longer than 1 s"),
        (SPIN, {"cpu": 1.0}, Outcome.TIMEOUT, "processor time"),
        ("os.fork()\n" + SPIN, {"cpu": 2.0}, Outcome.TIMEOUT, "processor time"),
        (FORKS, {"processes": 40}, Outcome.RUNTIME, "it had more than 40 processes"),
        ("while True: answer('x' * 4096)", {"output": MIB}, Outcome.RUNTIME, "it printed more than 1 MiB"),
        ("while True: os.write(2, b'x' * 4096)", {"output": MIB}, Outcome.RUNTIME, "it printed more than 1 MiB"),
        (FILES, {"disk": 50 * MIB}, Outcome.RUNTIME, "it wrote more than 50 MiB of files"),
        (SHARED + "time.sleep(30)", {"memory": 200 * MIB}, Outcome.OOM, "it held more than 200 MiB of memory"),
        (MANY + "time.sleep(30)", {"memory": 250 * MIB}, Outcome.OOM, "it held more than 250 MiB of memory"),
    ],
)
def test_a_broken_limit_is_an_outcome(run, code, limits, outcome, reason):
    started = time.monotonic()
    result = run(code, **limits)
    assert (result.outcome, reason in result.reason) == (outcome, True), result
    assert time.monotonic() - started < 15.0
    assert len(result.output) + len(result.errors) <= 128 * 1024


def test_pages_that_processes_share_count_once(run):
    shared = (
        "held = bytearray(b'x' * (100 << 20))\nfor _ in range(6):\n    if os.fork() == 0: time.sleep(2); os._exit(0)\n"
    )
    result = run(shared + "time.sleep(1.5); answer('done')", memory=300 * MIB)
    assert (result.outcome, result.output) == (Outcome.OK, "done"), result


def test_too_much_in_one_process_is_a_memory_error(run):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("RLIMIT_DATA is not used beside CUDA")
    result = run("x = bytearray(600 << 20)", memory=400 * MIB)
    assert "broken: MemoryError" in result.output, result


def test_memory_that_belongs_to_no_process_counts_for_the_machine(run):
    hoard = "files = [os.memfd_create('x') for _ in range(3)]\n"
    hoard += "for n in range(2100): os.write(files[n // 700], b'x' * (1 << 20))\ntime.sleep(30)"
    result = run(hoard, free_memory=available_bytes() - 400 * MIB)
    assert result.outcome is Outcome.OOM, result
    assert "was left on the machine" in result.reason


def test_shared_memory_files_are_small(run, sandbox):
    if sandbox.level is Level.RLIMITS:
        pytest.skip("at rlimits /dev/shm is the machine's own")
    result = run("open('/dev/shm/x', 'wb').write(b'x' * (65 << 20)); answer('out')")
    assert result.output.startswith("in: "), result


def test_one_file_may_not_be_larger(run):
    write = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); f = open(scratch + '/x', 'wb', 0)\n"
    write += "while True: f.write(b'x' * (1 << 20))"
    result = run(write, file=8 * MIB)
    assert "File too large" in result.output, result


def test_gpu_memory_is_asked_for_the_processes_of_the_candidate(run):
    asked = []

    def usage(pids):
        asked.append(pids)
        return 3 * MIB

    result = run("time.sleep(30)", usage, gpu_memory=2 * MIB)
    assert (result.outcome, result.reason) == (Outcome.OOM, "it held more than 2 MiB of GPU memory")
    assert asked
    assert all(isinstance(pid, int) for pid in asked[0])


def test_what_the_driver_tells(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in *compute*) printf '11, 512\\n12, 256\\n13, [N/A]\\n\\nNo devices\\n';; "
        "*total*) printf '1024\\n2048\\n';; esac\n"
    )
    tool.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert gpu.gpu_memory_of(frozenset({11, 13, 99})) == 512 * MIB
    assert gpu.gpu_memory_total() == 3072 * MIB
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(gpu, "_PATIENCE", 0.2)
    assert gpu.gpu_memory_total() == 0
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert gpu.gpu_memory_of(frozenset({11})) == 0


def test_a_workspace_goes_whatever_was_put_into_it(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    with Workspace(CodeTree({"engine/x.py": "x = 1\n"})) as workspace:
        scratch = workspace.view.scratch
        (scratch / "link").symlink_to(outside)
        locked = scratch / "a" / "b"
        locked.mkdir(parents=True)
        (locked / "file").write_text("x" * 10_000)
        os.mkfifo(scratch / "pipe")
        assert 8192 <= bytes_below(scratch) < MIB
        locked.chmod(0)
        locked.parent.chmod(0)
    assert not scratch.parent.exists()
    assert (outside / "file").read_text() == "mine"


def test_a_program_that_is_not_there(sandbox, workspace):
    result = run_confined(["/no/such/program"], sandbox, workspace.view, LIMITS)
    assert (result.outcome, result.code) == (Outcome.RUNTIME, 125)
    assert "cannot start /no/such/program: No such file or directory" in result.reason


@pytest.mark.parametrize(
    ("code", "outcome"), [("sys.exit(3)", Outcome.RUNTIME), ("os.kill(os.getpid(), 9)", Outcome.OOM)]
)
def test_how_it_ended_is_told(run, code, outcome):
    result = run("os.write(2, b'first\\nlast\\n')\n" + code)
    assert result.outcome is outcome
    assert result.code == (3 if outcome is Outcome.RUNTIME else 137)
    assert result.reason.endswith("3: last" if outcome is Outcome.RUNTIME else "most likely for memory")
