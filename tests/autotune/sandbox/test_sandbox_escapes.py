"""Ways out of the sandbox. Each ends as stated at each level that this machine has: `in`, or at rlimits only `out`."""

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from autotune.sandbox.base import Level
from space.outcome import Outcome

READS = {
    "a file by its path": "open(outside['reference']).read(); answer('out')",
    "a file by a link in the scratch folder": (
        "os.symlink(outside['reference'], scratch + '/link'); open(scratch + '/link').read(); answer('out')"
    ),
    "a file by a hard link": "os.link(outside['reference'], scratch + '/hard'); answer('out')",
    "a file by another program": (
        "code = subprocess.call(['/bin/cat', outside['reference']], stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL); answer('out' if code == 0 else 'in')"
    ),
    "a file by /proc/self/root": "open('/proc/self/root' + outside['reference']).read(); answer('out')",
    "a file by the root of the first process": "open('/proc/1/root' + outside['reference']).read(); answer('out')",
    "a file by a folder of the tuner": (
        "open(f\"/proc/{outside['tuner']}/root\" + outside['reference']).read(); answer('out')"
    ),
    "a file by a new user namespace": (
        "import ctypes; libc = ctypes.CDLL(None); libc.unshare(0x10020000); libc.umount2(b'/', 2);"
        "libc.mount(b'proc', b'/proc', b'proc', 0, None); open(outside['reference']).read(); answer('out')"
    ),
    "that a file is there": "os.stat(outside['reference']); answer('out')",
    "a listing": "os.listdir(outside['folder']); answer('out')",
}
WRITES = {
    "the reference": "open(outside['reference'], 'a').write('x'); answer('out')",
    "the model": "open(outside['weights'], 'a').write('x'); answer('out')",
    "the model by a hard link": (
        "os.link(outside['weights'], scratch + '/w'); os.chmod(scratch + '/w', 0o666);"
        " open(scratch + '/w', 'a').write('x'); answer('out')"
    ),
    "the model's rights": "os.chmod(outside['weights'], 0o777); answer('out')",
    "its own code": "os.chmod('engine/x.py', 0o666); open('engine/x.py', 'a').write('x'); answer('out')",
    "new code beside its own": "open('engine/y.py', 'w').write('x'); answer('out')",
    "the system": "open('/usr/lib/specpilot-test', 'w'); os.unlink('/usr/lib/specpilot-test'); answer('out')",
}
SPEAKS = {
    "TCP": "socket.create_connection(('127.0.0.1', outside['tcp']), 2); answer('out')",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0' + outside['abstract']); answer('out')",
    "a named socket": "socket.socket(socket.AF_UNIX).connect(outside['named']); answer('out')",
    "a signal": "os.kill(outside['tuner'], 0); answer('out')",
    "the tuner's memory": "open(f\"/proc/{outside['tuner']}/mem\", 'rb'); answer('out')",
    "the tuner's environment": "open(f\"/proc/{outside['tuner']}/environ\").read(); answer('out')",
}


def stated(sandbox, out_at_rlimits=True):
    return "out" if sandbox.level is Level.RLIMITS and out_at_rlimits else "in"


@pytest.mark.parametrize("name", READS)
def test_what_it_may_not_read(run, sandbox, name):
    result = run(READS[name])
    assert result.outcome is Outcome.OK, result
    if sandbox.level is not Level.RLIMITS or "first process" not in name:  # where that one lives, machines differ
        assert result.output.partition(":")[0] == stated(sandbox), result.output


@pytest.mark.parametrize("name", WRITES)
def test_what_it_may_not_write(run, sandbox, outside, workspace, name):
    needs_root = name == "the system"
    result = run(WRITES[name])
    assert result.outcome is Outcome.OK, result
    assert result.output.partition(":")[0] == stated(sandbox, os.getuid() == 0 or not needs_root), result.output
    if sandbox.level is not Level.RLIMITS:
        assert Path(outside["reference"]).read_text() == "reference tokens"
        assert Path(outside["weights"]).read_text() == "the model's weights"
        assert stat.S_IMODE(Path(outside["weights"]).stat().st_mode) & 0o111 == 0
        assert (workspace.view.code / "engine" / "x.py").read_text() == "x = 1\n"
        assert not (workspace.view.code / "engine" / "y.py").exists()


@pytest.mark.parametrize("name", SPEAKS)
def test_whom_it_may_not_reach(run, sandbox, name):
    result = run(SPEAKS[name])
    assert result.outcome is Outcome.OK, result
    assert result.output.partition(":")[0] == stated(sandbox), result.output


def test_a_datagram_does_not_arrive(run, sandbox, outside):
    run("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', outside['udp'])); answer('sent')")
    try:
        arrived = outside["received"].recv(1) == b"x"
    except BlockingIOError:
        arrived = False
    assert arrived == (sandbox.level is Level.RLIMITS)


def test_what_it_may_do(run, workspace):
    """So that `in` above is a refusal of the thing, not of everything."""
    result = run(
        "open(outside['weights']).read(); open('engine/x.py').read(); open('/dev/null', 'w').write('x');"
        "os.symlink('a', scratch + '/b'); open(scratch + '/a', 'w').write('x');"
        "os.link(scratch + '/a', scratch + '/c');"
        "open('/dev/urandom', 'rb').read(1); subprocess.run(['/bin/true'], check=True); answer(str(os.getpid() > 0))"
    )
    assert (result.outcome, result.output) == (Outcome.OK, "True"), result
    assert (workspace.view.scratch / "tmp" / "a").read_text() == "x"


def test_secrets_of_the_environment_stay_outside(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    result = run("answer(json.dumps(dict(os.environ)))")
    assert "secret" not in result.output
    assert '"HF_HUB_OFFLINE": "1"' in result.output
    assert result.output.count(str(result.output and "/scratch/")) >= 4, (
        "caches and temporary files lie in its own folder"
    )


def test_no_open_file_of_the_tuner_is_inherited(run, outside):
    held = os.open(outside["reference"], os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        # Opening the listing takes the next free number, 3; others would be the tuner's.
        assert run("answer(json.dumps(sorted(map(int, os.listdir('/proc/self/fd')))))").output == "[0, 1, 2, 3]"
    finally:
        os.close(held)


def test_devices(run, sandbox):
    root_may = sandbox.level is Level.RLIMITS and os.getuid() == 0
    made = run("os.mknod(scratch + '/disk', 0o600 | 0o060000, os.makedev(254, 0)); answer('out')")
    assert made.output.partition(":")[0] == ("out" if root_may else "in"), made.output
    shown = run(
        "answer(json.dumps([n for n in os.listdir('/dev') if n in ('mem', 'kmsg', 'port', 'fuse', 'kvm', 'vda')]))"
    )
    if sandbox.level is not Level.RLIMITS:
        assert shown.output in ("[]", "in: [Errno 13] Permission denied: '/dev'")


def test_it_sees_no_other_process(run, sandbox):
    seen = int(run("answer(str(sum(name.isdecimal() for name in os.listdir('/proc'))))").output)
    assert seen <= 3 or sandbox.level is Level.RLIMITS


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def tagged(tag):
    """Living processes whose command line has a tag."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and tag.encode() in (folder / "cmdline").read_bytes() and alive(folder.name):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


SURVIVORS = {
    "a child that holds the output": "subprocess.Popen(sleeper)",
    "a child of a new session": "subprocess.Popen(sleeper, start_new_session=True)",
    "an orphan of a new session": (
        "subprocess.run([sys.executable, '-I', '-S', '-c',"
        " f'import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)'])"
    ),
    "an orphan without environment": (
        "subprocess.run([sys.executable, '-I', '-S', '-c',"
        " f'import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True, env={{}})'])"
    ),
    "a child that ignores signals": (
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; subprocess.Popen(sleeper, start_new_session=True)"
    ),
    "a stopped child": "os.kill(subprocess.Popen(sleeper).pid, signal.SIGSTOP)",
    "a child after its supervisor was killed": (
        "subprocess.Popen(sleeper, start_new_session=True); os.kill(os.getppid(), signal.SIGKILL)"
    ),
}


@pytest.mark.parametrize("name", SURVIVORS)
def test_nothing_survives(run, sandbox, name):
    tag = f"sleeper-{os.getpid()}-{sandbox.level.name}-{list(SURVIVORS).index(name)}"
    sleeper = f"sleeper = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(40)', '{tag}']\n"
    started = time.monotonic()
    result = run(sleeper + SURVIVORS[name] + "\ntime.sleep(0.3); answer('done')", wall=30.0)
    assert time.monotonic() - started < 20.0, "a survivor held it up"
    assert tagged(tag) == []
    assert result.outcome in (Outcome.OK, Outcome.OOM), result  # a killed supervisor looks like one killed for memory


def test_at_rlimits_a_child_that_hides_from_us_does_survive(run, sandbox):
    """What rlimits alone cannot do is stated, not hoped: the supervisor killed, the environment cleared."""
    tag = f"hidden-{os.getpid()}-{sandbox.level.name}"
    hidden = f"[sys.executable, '-I', '-S', '-c', 'import time; time.sleep(40)', '{tag}']"
    run(f"subprocess.Popen({hidden}, start_new_session=True, env={{}}); os.kill(os.getppid(), signal.SIGKILL)")
    left = tagged(tag)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == (sandbox.level is Level.RLIMITS)


ORPHAN = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from confining import LIMITS, made
from autotune.sandbox.base import Level
from autotune.sandbox.process import run_confined
from autotune.sandbox.workspace import Workspace
from space.patch import CodeTree
workspace = Workspace(CodeTree({{"engine/x.py": "x = 1\\n"}}))
sys.stdout.write(str(workspace.view.code.parent) + "\\n")
sys.stdout.flush()
argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", {tag!r}]
run_confined(argv, made(Level({level!r})), workspace.view, LIMITS)
"""


def test_it_ends_with_the_tuner(sandbox):
    import shutil
    import subprocess

    here = Path(__file__).parent
    tag = f"orphan-{os.getpid()}-{sandbox.level.name}"
    code = ORPHAN.format(root=str(here.parents[2]), here=str(here), tag=tag, level=sandbox.level.value)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tuner:
        folder = tuner.stdout.readline().strip()
        deadline = time.monotonic() + 30.0
        while len(tagged(tag)) < 3 and time.monotonic() < deadline:  # the tuner, the launcher and the sleeper
            time.sleep(0.05)
        assert len(tagged(tag)) >= 3
        tuner.kill()
    while tagged(tag) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = tagged(tag)
    shutil.rmtree(folder)
    assert left == []
