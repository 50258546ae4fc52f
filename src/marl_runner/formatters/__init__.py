"""Formatters: from a dataset row to the text an agent is sent. One file each."""
