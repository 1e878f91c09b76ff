"""Prints the table of docs/configuration.md."""

from penstock.config.models import Config
from penstock.config.reference import table

print(table(Config))
