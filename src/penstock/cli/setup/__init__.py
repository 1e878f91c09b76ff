"""What `penstock init` asks, looks at and writes."""
