"""Prints the tables of docs/configuration.md."""

from penstock.config.key_reference import option_tables, table
from penstock.config.models import Config

print(table(Config))
for type, keys in option_tables().items():
    print(f"\n### Of type `{type}`\n\n{keys}")
