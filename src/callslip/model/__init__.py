"""Data types: events, entries, records and their JSON. No rules, no I/O."""
