"""Destination `files`: full copies and changes as CSV, with a registry that tells consumers of them."""
