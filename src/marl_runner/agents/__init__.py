"""Agents: the teams that can be named on the command line. One file each."""
