import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Lsn
from penstock.model.errors import ConfigError, PenstockError, SlotLost
from penstock.model.secrets import without_secrets


@given(st.integers(0, 2**63 - 1))
def test_an_lsn_prints_as_postgres_does_and_parses_back(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == Lsn(value)


def test_an_lsn_with_leading_zeros_is_the_same() -> None:
    assert Lsn.parse("16/0B374D84") == Lsn.parse("16/B374D84")


@pytest.mark.parametrize("text", ["", "16", "G/1", "1/2/3", "123456789/0"])
def test_what_is_no_lsn_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is not an LSN"):
        Lsn.parse(text)


def test_every_error_has_a_remedy_of_its_own() -> None:
    """But a mistake in a configuration, whose place and reason are all that there is to say."""
    kinds = PenstockError.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind for kind in kinds if "remedy" not in vars(kind)} == {ConfigError}


def test_an_error_crosses_processes_whole() -> None:
    error = SlotLost("the slot is gone", source="eu", lsn=Lsn(16))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.where == {"source": "eu", "lsn": Lsn(16)}


@pytest.mark.parametrize(
    "text",
    [
        "host=x password=hush sslmode=require",
        "host=x password='hu sh hush'",
        "postgresql://cdc:hush@db/shop",
        'connection to "postgresql://cdc:hush@db/shop?password=hush" failed',
    ],
)
def test_no_secret_survives(text: str) -> None:
    assert "hush" not in without_secrets(text)
