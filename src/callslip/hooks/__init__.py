"""Hooks of agents in a terminal: their installation, and the script that they start."""
