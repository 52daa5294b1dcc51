"""Volume ids: round trips, and rejection of anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId, VolumeKind

numbers = st.integers(0, 0xFFFFFFFF)
volume_ids = st.builds(
    VolumeId,
    st.sampled_from(VolumeKind),
    st.sampled_from(ObjectType),
    st.from_regex(r"[A-Za-z0-9_-]{1,36}", fullmatch=True),
    numbers,
    numbers,
    st.builds(ids.token_of, st.text(), st.binary(min_size=4, max_size=4)),
    st.just("") | st.uuids().map(str).map(ids.short_fsid),
)


@given(volume_ids)
def test_ids_survive_a_round_trip(volume_id: VolumeId) -> None:
    assert ids.parse_volume_id(str(volume_id)) == volume_id
    assert len(str(volume_id)) <= ids.LONGEST
    assert str(volume_id).isprintable()


@given(st.text())
def test_other_text_is_no_id(text: str) -> None:
    parsed = ids.parse_volume_id(text)
    assert parsed is None or str(parsed) == text


@given(st.text(), st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_tokens_of_a_name_share_its_hash(name: str, one: bytes, other: bytes) -> None:
    tokens = [ids.token_of(name, randomness) for randomness in (one, other)]
    assert {token[: ids.HASH_DIGITS] for token in tokens} == {ids.name_hash(name)}
    assert (tokens[0] == tokens[1]) == (one == other)


@pytest.mark.parametrize("name", ["", "n" * 129, "ü" * 65, "a\nb", "a\0b", "\u202e", "\ud800"])
def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(CsiError) as error:
        ids.check_name(name, "the volume")
    assert error.value.code is GrpcCode.INVALID_ARGUMENT
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["pvc-1", "../../etc/passwd", "a b", "n" * 128, "名前"])
def test_any_printable_name_is_accepted(name: str) -> None:
    assert ids.check_name(name, "the volume") == name


@pytest.mark.parametrize(
    ("image", "object_type"),
    [
        (f"csi-vol-{'0a' * 16}", "vol"),
        (f"csi-snap-{'0a' * 16}", "snap"),
        ("csi-vol-0001ad2e-7f3c-4a51-9d7e-2b1c5d4e6f70", None),  # as ceph-csi names its own, in the same group
        (f"csi-vol-{'0a' * 16}-temp", None),
        ("csi-vol-", None),
        ("data", None),
    ],
)
def test_images_of_other_drivers_are_not_recognised(image: str, object_type: str | None) -> None:
    """`csi doctor` removes images that are in no journal, but never those of another driver."""
    parsed = ids.parse_image_name(image)
    assert (parsed[0] if parsed is not None else None) == object_type
