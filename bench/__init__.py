"""Benchmarks: each beside what one would use instead, in the same run.

A benchmark is a module of this folder with a function `cases(rows) -> Iterator[Case]`, where `rows` is the
size asked for or None; the first line of its docstring is its title. `python -m bench NAME` runs one.
"""
