"""Every level that this machine has, a candidate's folder, and the things outside that it must not reach."""

import json
import os
import socket
import sys
from dataclasses import replace

import pytest
from confining import LIMITS, PRELUDE, made

from autotune.sandbox.base import Level
from autotune.sandbox.process import run_confined
from autotune.sandbox.workspace import Workspace
from space.patch import CodeTree


@pytest.fixture(scope="session", params=list(Level), ids=lambda level: level.name.lower())
def sandbox(request):
    return made(request.param)


@pytest.fixture
def workspace(tmp_path):
    """A folder with one file of code, and a model that may be read."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("the model's weights")
    with Workspace(CodeTree({"engine/x.py": "x = 1\n"}), (model,)) as workspace:
        yield workspace


@pytest.fixture
def outside(tmp_path):
    """Things of the tuner's: a file of reference tokens, sockets of each kind, and its process."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "reference").write_text("reference tokens")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        path, name = folder / "socket", f"specpilot-test-{os.getpid()}"
        named.bind(str(path))
        abstract.bind("\0" + name)
        for server in (named, abstract):
            server.listen()
        yield {
            "folder": str(folder),
            "reference": str(folder / "reference"),
            "weights": str(tmp_path / "model" / "weights"),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "received": udp,
            "named": str(path),
            "abstract": name,
            "tuner": os.getpid(),
        }


@pytest.fixture
def run(sandbox, workspace, outside):
    """Runs code at one level; returns the result."""
    told = json.dumps({name: value for name, value in outside.items() if name != "received"})

    def run(code, usage=None, **limits):
        argv = [sys.executable, "-I", "-S", "-c", PRELUDE + code, told]
        return run_confined(argv, sandbox, workspace.view, replace(LIMITS, **limits), usage)

    return run
