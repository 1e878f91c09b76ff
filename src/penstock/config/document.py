"""YAML with limits: what somebody hands us must not cost more than reading it.

An alias stands for all of what it names, and aliases of aliases multiply: nine lines can stand for a billion
values. PyYAML itself keeps one of each, but whoever walks over the document visits them all. So each node is
weighed as it is composed, with its aliases as often as they occur, and a document that is too large, or
nested too deeply for the recursion of what follows, is refused at the line where it becomes so. Aliases and
merge keys of ordinary size are as good as ever.
"""

from __future__ import annotations

from typing import Any

import yaml

LARGEST = 1_000_000
"""Bytes of a file."""
MOST_NODES = 20_000
DEEPEST = 50


class Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._within = self._composed = 0
        self._weights: dict[int, tuple[int, int]] = {}
        """Of each node that is complete: how many it stands for, and how deep they are nested."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        at: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._within += 1
        if self._within > DEEPEST:
            raise _refused(f"at most {DEEPEST} levels", at)
        self._composed += 1
        if self._composed > MOST_NODES:
            raise _refused(f"at most {MOST_NODES} values", at)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._within -= 1
        if is_alias and id(node) not in self._weights:
            raise _refused("an alias to something that it is not part of", at)
        for key in (key for key, _ in node.value) if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                below = f"below `{index.value}` " if isinstance(index, yaml.ScalarNode) else ""
                raise _refused(f"{below}a key of one value, not a list or keys", key.start_mark)
        if node is not None and not is_alias:
            parts = [self._weights[id(child)] for child in _children(node)]
            nodes, levels = 1 + sum(n for n, _ in parts), 1 + max((deep for _, deep in parts), default=0)
            if nodes > MOST_NODES:
                raise _refused(f"at most {MOST_NODES} values, counting what aliases stand for", at)
            if levels > DEEPEST:
                raise _refused(f"at most {DEEPEST} levels, counting those of aliases", at)
            self._weights[id(node)] = nodes, levels
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Python refuses what looks like a date and is none, and a number of thousands of digits."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            reason = str(error).split(";")[0]
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from None


def safe_load(text: str) -> Any:
    loader = Loader(text)
    return loader.get_single_data()


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refused(reason: str, mark: yaml.Mark) -> yaml.composer.ComposerError:
    return yaml.composer.ComposerError(None, None, reason, mark)
