"""Hardware profiles: the shipped ones are whole and sane, a measured one survives its file, bad files are answered."""

import pytest

from space.errors import InputError
from space.hardware import (
    Figure,
    HardwareProfile,
    RowPoint,
    find_profile,
    profile_names,
    profile_toml,
    read_profile,
)

GPUS = ("a100-80g", "b200", "h100", "h200", "rtx4090", "rtx5090")


def figure(value):
    return Figure(value=value, source="a test")


def measured(rows):
    one = figure(1.0)
    return HardwareProfile(
        name="here",
        title='a "quoted" \\ processor\n',
        kind="measured",
        read_bandwidth=figure(2e10),
        matrix_rate=figure(1e12),
        memory=one,
        launch=figure(1.5e-05),
        host_gap=one,
        rows=tuple(RowPoint(rows=count, bytes_per_second=rate) for count, rate in rows),
    )


def test_the_six_gpus_are_shipped():
    assert tuple(profile_names()) == GPUS
    for name in GPUS:
        profile = find_profile(name)
        assert (profile.name, profile.kind, profile.rows) == (name, "datasheet", ())
        # FLOPs a byte at the ridge: between a gaming card and a data centre one; a slipped power of ten falls out.
        assert 100 < profile.matrix_rate.value / profile.read_bandwidth.value < 400
        assert 16e9 < profile.memory.value < 300e9
        assert 30 * 2**20 < profile.l2.value < 200 * 2**20


@pytest.mark.parametrize(("slower", "faster"), [("rtx4090", "rtx5090"), ("a100-80g", "h100"), ("h200", "b200")])
def test_generations_are_in_order(slower, faster):
    old, new = find_profile(slower), find_profile(faster)
    assert old.read_bandwidth.value < new.read_bandwidth.value
    assert old.matrix_rate.value < new.matrix_rate.value


def test_a_profile_survives_its_file(tmp_path):
    path = tmp_path / "here.toml"
    profile = measured([(1, 2e10), (8, 1.9e10)])
    path.write_text(profile_toml(profile), encoding="utf-8")
    again = read_profile(path)
    assert again.model_dump(exclude={"title"}) == profile.model_dump(exclude={"title"})
    assert again.title == 'a "quoted" \\ processor '
    assert read_profile(path).streaming_rate(8) == pytest.approx(1.9e10)


def test_the_row_curve_is_read_between_its_points():
    profile = measured([(1, 1.0), (3, 0.5)])
    assert [1 / profile.streaming_rate(rows) for rows in (1, 2, 3, 4)] == pytest.approx([1.0, 1.5, 2.0, 2.5])
    assert find_profile("h200").streaming_rate(8) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[launch]", "[lunch]"), r"launch: field required|lunch: extra inputs"),
        (("value = 20000000000.0", "value = 0"), r"read_bandwidth\.value: input should be greater than 0"),
        (("value = 20000000000.0", "value = inf"), r"read_bandwidth\.value: input should be a finite number"),
        (("rows = 8", "rows = 1"), r"rows must rise strictly, and are \[1, 1\]"),
        (('kind = "measured"', "kind = "), "cannot be read as TOML"),
    ],
)
def test_a_bad_profile_is_answered(tmp_path, change, message):
    path = tmp_path / "bad.toml"
    path.write_text(profile_toml(measured([(1, 2e10), (8, 1.9e10)])).replace(*change), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_profile(path)


def test_an_unknown_profile_offers_the_nearest(tmp_path):
    with pytest.raises(InputError, match="unknown hardware profile 'rtx-4090'; did you mean 'rtx4090'"):
        find_profile("rtx-4090")
    with pytest.raises(InputError, match="cannot read hardware profile"):
        read_profile(tmp_path / "absent.toml")
