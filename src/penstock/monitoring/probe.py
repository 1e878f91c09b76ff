"""`python -m penstock.monitoring.probe CONFIG`: the health check of a container.

It asks /health at the address that the configuration names, on this machine, and ends with 0 or 1. Where
nothing is served, or nobody can know at which port, nothing is known against the pipeline: 0.
"""

from __future__ import annotations

import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from penstock.config import load
from penstock.model.errors import ConfigError

PATIENCE = 10.0
"""Seconds to wait for the answer."""


def main(config: str) -> int:
    try:
        monitoring = load(config).monitoring
    except ConfigError as error:
        print(error)
        return 1
    if not monitoring.enabled or not monitoring.port:
        print("not asked: monitoring.enabled is false, or monitoring.port 0, which is any that is free")
        return 0
    # The addresses that mean all of a machine's, 0.0.0.0 and ::, lead to this one.
    with closing(HTTPConnection(monitoring.host, monitoring.port, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            print(answer.read().decode())
        except (OSError, HTTPException) as error:
            print(f"{monitoring.host}:{monitoring.port}: {error}")
            return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
