"""Ids say where a volume is; whatever else is sent as one is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId, VolumeKind

numbers = st.integers(0, 0xFFFFFFFF)
made = st.builds(
    VolumeId,
    st.sampled_from(VolumeKind),
    st.sampled_from(ObjectType),
    st.from_regex(r"[A-Za-z0-9_-]{1,36}", fullmatch=True),
    numbers,
    numbers,
    st.builds(ids.token_of, st.text(), st.binary(min_size=4, max_size=4)),
    st.just("") | st.uuids().map(str).map(ids.short_fsid),
)


@given(made)
def test_an_id_is_read_as_it_was_written(which: VolumeId) -> None:
    assert ids.parse(str(which)) == which
    assert len(str(which)) <= ids.LONGEST
    assert str(which).isprintable()


@given(st.text())
def test_anything_else_is_none(text: str) -> None:
    found = ids.parse(text)
    assert found is None or str(found) == text


@given(st.text(), st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_a_name_has_one_key_and_each_volume_of_it_another_token(name: str, one: bytes, other: bytes) -> None:
    tokens = [ids.token_of(name, each) for each in (one, other)]
    assert {token[: ids.HASH_DIGITS] for token in tokens} == {ids.name_hash(name)}
    assert (tokens[0] == tokens[1]) == (one == other)


@pytest.mark.parametrize("name", ["", "n" * 129, "ü" * 65, "a\nb", "a\0b", "\u202e", "\ud800"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(CsiError) as refused:
        ids.check_name(name, "the volume")
    assert refused.value.code is GrpcCode.INVALID_ARGUMENT
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["pvc-1", "../../etc/passwd", "a b", "n" * 128, "名前"])
def test_names_only_become_hashes_so_almost_any_will_do(name: str) -> None:
    assert ids.check_name(name, "the volume") == name


@pytest.mark.parametrize(
    ("image", "thing"),
    [
        (f"csi-vol-{'0a' * 16}", "vol"),
        (f"csi-snap-{'0a' * 16}", "snap"),
        ("csi-vol-0001ad2e-7f3c-4a51-9d7e-2b1c5d4e6f70", None),  # as ceph-csi names its own, in the same group
        (f"csi-vol-{'0a' * 16}-temp", None),
        ("csi-vol-", None),
        ("data", None),
    ],
)
def test_only_what_is_ours_is_taken_for_it(image: str, thing: str | None) -> None:
    """The doctor removes what no journal knows: it may not take another driver's volume for that."""
    found = ids.named(image)
    assert (found[0] if found is not None else None) == thing
