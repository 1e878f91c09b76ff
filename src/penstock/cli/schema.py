"""`penstock schema`: the configuration as a JSON schema, for editors."""

from __future__ import annotations

import json


def schema() -> None:
    """Print a JSON schema of the configuration file, for editors that complete and check YAML.

    Example: penstock schema > penstock.schema.json
    """
    from penstock.config.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
