"""The fast decoder and the reference come to the same, whatever arrives and however it is cut."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.capture import kernels
from penstock.capture.decoder import FastDecoder
from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.capture.runs import MessageRun
from penstock.model import ZERO, Lsn
from tests.capture.decoding import Versions, assert_same, cut, drive
from tests.capture.pgoutput import damaged, streams

CUTS = st.lists(st.integers(0, 200), max_size=4)
STARTS = st.sampled_from([ZERO, ZERO, Lsn(101_500), Lsn(300_000)])
THOROUGH = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@THOROUGH
@given(streams(), CUTS, STARTS)
def test_both_decoders_take_the_same_steps(sent: list[bytes], cuts: list[int], start: Lsn) -> None:
    runs = cut(sent, cuts)
    ours = drive(FastDecoder(Versions(), start), runs)
    assert ours.refused is None
    assert_same(ours, drive(ReferenceDecoder(Versions(), start), runs))


@THOROUGH
@given(streams(), CUTS, CUTS)
def test_where_a_stream_is_cut_changes_nothing(sent: list[bytes], one: list[int], other: list[int]) -> None:
    first = drive(FastDecoder(Versions(), ZERO), cut(sent, one))
    second = drive(FastDecoder(Versions(), ZERO), cut(sent, other))
    assert first.listed() == second.listed()
    assert first.position == second.position
    assert first.ended == second.ended


@THOROUGH
@given(streams())
def test_a_run_without_streamed_transactions_is_one_step(sent: list[bytes]) -> None:
    outcome = drive(FastDecoder(Versions(), ZERO), [MessageRun.of(sent)])
    if not any(message[25:26] in (b"S", b"c", b"A") for message in sent if message[:1] == b"w"):
        assert len(outcome.steps) == 1


@settings(THOROUGH, max_examples=600)
@given(damaged(), CUTS)
def test_both_refuse_a_damaged_stream_at_the_same_place(sent: list[bytes], cuts: list[int]) -> None:
    runs = cut(sent, cuts)
    assert_same(drive(FastDecoder(Versions(), ZERO), runs), drive(ReferenceDecoder(Versions(), ZERO), runs))


@THOROUGH
@given(st.binary(max_size=200), st.lists(st.integers(-5, 250), max_size=6))
def test_noise_is_refused(data: bytes, ends: list[int]) -> None:
    run = MessageRun(data, np.array(ends, np.int64))
    ours = drive(FastDecoder(Versions(), ZERO), [run])
    assert_same(ours, drive(ReferenceDecoder(Versions(), ZERO), [run]))
    assert ours.refused is not None or not ends


FRAGMENTS = st.sampled_from(
    ["a", "ä", "€", "\U0001f40d", *b"\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"]
).map(lambda given: given.encode() if isinstance(given, str) else bytes([given]))


@settings(deadline=None, max_examples=2000)
@given(st.lists(FRAGMENTS | st.binary(max_size=2), max_size=6).map(b"".join))
def test_utf8_is_what_python_takes_for_it(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        good = False
    else:
        good = True
    assert kernels._utf8(np.frombuffer(data, np.uint8), 0, len(data)) == good


def test_the_kernels_are_compiled_for_one_kind_of_arrays_only() -> None:
    for name in ("scan", "fill", "gather"):
        assert len(getattr(kernels, name).signatures) <= 1
