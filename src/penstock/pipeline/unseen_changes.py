"""What happened to a table that the stream does not show, told by what it was when it was copied.

A table that was not published for a while has changes that nobody captured. Of a partitioned table, which is
published as a whole, a partition may be attached with rows in it, detached, dropped, truncated: none of that
is in the stream. In both cases the table is copied anew. A partition that was empty when it was seen attached
is no reason to: all of its rows come with the stream.

An enum's value can be renamed, and a composite type can get another field or lose one: all rows that have
such a value print otherwise then, and are not in the stream either.

Another file of a partition's is taken for a TRUNCATE, which replaces it as VACUUM FULL, CLUSTER and an ALTER
that rewrites it do: the catalog does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.pipeline.table_facts import Facts


def unseen(detail: Mapping[str, Any], now: Facts) -> str | None:
    """Return why the table is to be copied anew, if so; `detail` is `Facts.detail` of its copy."""
    if "member" in detail and now.member.isdisjoint(detail["member"]):
        return "it was not published for a while"
    types: Mapping[str, str] = detail.get("types", {})
    if any(now.types.get(oid, text) != text for oid, text in types.items()):
        return "values of a type were renamed, or its fields changed"
    leaves: Mapping[str, str] = detail.get("leaves", now.leaves)
    gone = leaves.keys() - now.leaves.keys()
    if gone:
        return f"partitions were detached or dropped: {len(gone)}"
    changed = [leaf for leaf, rows in now.leaves.items() if leaves.get(leaf, rows) != rows]
    if changed:
        return f"partitions were truncated, rewritten or attached anew: {len(changed)}"
    filled = now.leaves.keys() - leaves.keys() - now.streamed
    if filled:
        return f"partitions were attached that have rows: {len(filled)}"
    return None


def remember(detail: Mapping[str, Any], now: Facts) -> dict[str, Any]:
    """Return `detail` brought up to date, for later, where nothing went unseen."""
    return {**detail, "member": sorted(now.member), "leaves": dict(now.leaves), "types": dict(now.types)}
