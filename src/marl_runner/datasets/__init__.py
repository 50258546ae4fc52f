"""The `dataset` group: each option is one frozen dataclass whose call returns the train and eval rows."""
