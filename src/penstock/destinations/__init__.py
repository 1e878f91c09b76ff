"""Destinations: the protocol, and one module or folder for each of them."""
