"""Places to run in: an empty one for each test, and one with a finished run that tests only look at."""

import shutil

import pytest
from commands import Place


@pytest.fixture
def place(tmp_path, tiny_checkpoint):
    return Place(tmp_path, tiny_checkpoint)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, tiny_checkpoint):
    """A place whose run has ended, and what it printed."""
    place = Place(tmp_path_factory.mktemp("finished"), tiny_checkpoint)
    code, out, err = place.tune()
    assert (code, err) == (0, ""), out
    return place, out


@pytest.fixture
def copied(finished, tmp_path, tiny_checkpoint):
    """A copy of that place, to change."""
    place = Place(tmp_path, tiny_checkpoint)
    shutil.copytree(finished[0].folder, tmp_path, dirs_exist_ok=True)
    return place
