"""A process that holds the lease of a pipeline until its input ends, for the tests of the lease."""

from __future__ import annotations

import sys

from penstock.state import Store


def main(url: str, pipeline: str) -> None:
    with Store.open(url, pipeline, exclusive=True):
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
