"""Policies: what samples completions and scores them. `hf` on transformers, `scripted` for tests."""
