"""Rewards: one number per joint action. One file each; importing this package registers them all."""

import importlib
import pkgutil

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
