"""Several requests at once, and sampling, in real processes: tuned in that way, exported and verified."""

import json
import re
import sqlite3

import pytest
from commands import Place
from tiny_deployment import write_deployment


@pytest.mark.parametrize(
    ("concurrency", "temperature", "words"), [(4, 0, ("--set", "packing=survival")), (1, 0.8, ())], ids=["4", "sampled"]
)
def test_a_workload_is_tuned_and_its_result_verified(tmp_path, tiny_checkpoint, concurrency, temperature, words):
    place = Place(tmp_path, tiny_checkpoint)
    place.toml = write_deployment(tmp_path, tiny_checkpoint, concurrency=concurrency, temperature=temperature)
    code, out, err = place.tune(*words)
    assert code == 0, err
    assert re.search(r"^best .* (\d+) of \1$", out, re.MULTILINE)
    knobs = json.loads(place.export.read_text(encoding="utf-8"))["knobs"]
    assert knobs.get("packing") == ("survival" if concurrency > 1 else None)
    with sqlite3.connect(place.archive) as db:
        regimes = db.execute("SELECT DISTINCT regime FROM evaluation WHERE regime IS NOT NULL").fetchall()
    assert regimes == [(concurrency,)]
    code, out, err = place.call("verify", "--config", str(place.export))
    assert code == 0, out + err
