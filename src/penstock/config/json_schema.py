"""The configuration as a JSON schema, for editors: completion, descriptions, mistakes underlined.

It is generated from the models, with the keys of every type of destination that is installed. What a schema
cannot say (a variable that must be set, two names that must differ) only `load` finds; nothing that `load`
takes as it is documented is wrong to the schema.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.config import destination_types
from penstock.config.models import Config
from penstock.config.quantities import DURATION, SIZE

Schema = dict[str, Any]

_DESTINATION = "DestinationConfig"
_COMMENTS = ("title", "format", "writeOnly")
"""What pydantic adds and no editor should show."""
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""What pydantic writes where it cannot tell that a limit is one of a number."""


def json_schema() -> Schema:
    """Return the schema of the configuration file."""
    types = {name: destination_types.load(name).options for name in destination_types.names()}
    models: list[type[BaseModel]] = [Config, *types.values()]
    references, document = models_json_schema([(model, "validation") for model in models])
    shared: Schema = {name: _plain(schema) for name, schema in document["$defs"].items()}
    names = {name: _name(references[model, "validation"]) for name, model in types.items()}
    common = shared[_DESTINATION]
    variants = {_variant_name(name): _variant(common, name, shared[of]) for name, of in names.items()}
    shared[_DESTINATION] = _by_type(common, {name: _variant_name(name) for name in names})
    root = shared.pop(_name(references[Config, "validation"]))
    kept = {name: schema for name, schema in shared.items() if name not in names.values()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of a Penstock pipeline",
        **root,
        "definitions": _moved(kept | variants),
    } | {"properties": _moved(root["properties"])}


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _variant_name(type: str) -> str:
    return f"destination-{quote(type, safe='')}"


def _variant(common: Schema, type: str, options: Schema) -> Schema:
    """Return the keys that all destinations have, with those of one type."""
    properties = common["properties"] | options["properties"] | {"type": {"const": type}}
    required = [*common["required"], *options.get("required", [])]
    return options | {"properties": properties, "required": required, "additionalProperties": False}


def _by_type(common: Schema, variants: dict[str, str]) -> Schema:
    """Return the schema of any destination: its `type` decides which keys it has."""
    chosen = {"description": common["properties"]["type"]["description"], "enum": list(variants)}
    return {
        "type": "object",
        "properties": {"name": common["properties"]["name"], "type": chosen},
        "required": common["required"],
        "allOf": [
            {
                "if": {"properties": {"type": {"const": type}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/{variant}"},
            }
            for type, variant in variants.items()
        ],
    }


def _plain(schema: Schema) -> Schema:
    """Return a model's schema with its defaults as one writes them, and without pydantic's comments."""
    properties = {key: _key(rule) for key, rule in schema.get("properties", {}).items()}
    kept = {key: value for key, value in schema.items() if key not in _COMMENTS}
    return kept | ({"properties": properties} if properties else {})


def _key(rule: Schema) -> Schema:
    kept: Schema = _uncommented(rule)
    default = kept.get("default")
    if default is None or isinstance(default, dict):
        kept.pop("default", None)
    elif rule.get("anyOf") == DURATION["anyOf"]:
        kept["default"] = f"{default:g}s"
    elif rule.get("anyOf") == SIZE["anyOf"]:
        kept["default"] = default // 10**6
    if "$ref" in kept:  # what stands beside a reference is not read
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    elif any("$ref" in choice for choice in kept.get("anyOf", ())):  # a section or nothing at all
        kept["allOf"] = [choice for choice in kept.pop("anyOf") if "$ref" in choice]
    if "patternProperties" in kept:
        kept["additionalProperties"] = False
    return kept


def _uncommented(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key not in _COMMENTS}
        return {_LIMITS.get(key, key): _uncommented(part) for key, part in kept.items()}
    return [_uncommented(part) for part in value] if isinstance(value, list) else value


def _moved(value: Any) -> Any:
    """Return it with references to where draft 7, which every editor reads, has its definitions."""
    if isinstance(value, dict):
        return {
            key: part.replace("#/$defs/", "#/definitions/") if key == "$ref" else _moved(part)
            for key, part in value.items()
        }
    return [_moved(part) for part in value] if isinstance(value, list) else value
