"""The source server: connections, catalog, types, publication, slot, and the checks before all of them."""
