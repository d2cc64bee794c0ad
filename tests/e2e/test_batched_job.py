"""A deployment with several requests at once, in real processes: it is tuned in its regime, exported and verified."""

import json
import sqlite3

from commands import Place
from tiny_deployment import write_deployment


def test_a_regime_is_tuned_and_its_result_verified(tmp_path, tiny_checkpoint):
    place = Place(tmp_path, tiny_checkpoint)
    place.toml = write_deployment(tmp_path, tiny_checkpoint, concurrency=4)
    code, out, err = place.tune("--set", "packing=survival")
    assert code == 0, err
    document = json.loads(place.export.read_text(encoding="utf-8"))
    assert document["knobs"]["packing"] == "survival", document.keys()
    with sqlite3.connect(place.archive) as db:
        assert db.execute("SELECT DISTINCT regime FROM evaluation WHERE regime IS NOT NULL").fetchall() == [(4,)]
    code, out, err = place.call("verify", "--config", str(place.export))
    assert code == 0, out + err
