"""Removes from the image what the operator never loads: generated classes of the kubernetes package, and test files.

The operator speaks to the API server through the REST layer of `kubernetes.aio` with plain dictionaries, so no class
of `kubernetes.client.models` or `.api` is ever made. The few that other modules import on loading stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kubernetes
import kubernetes.aio.config

import dsv4_operator.operator

assert dsv4_operator.operator  # imported for what it loads
site = Path(str(kubernetes.__file__)).parents[1]
files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
loaded = {Path(file).resolve() for file in files if file}

for package in ("kubernetes/client", "kubernetes/aio/client"):
    for folder in ("models", "api"):
        for path in (site / package / folder).glob("*.py"):
            if path.resolve() not in loaded and path.name != "__init__.py":
                path.unlink()
for path in site.rglob("*_test.py"):
    if path.resolve() not in loaded:
        path.unlink()
# Typing stubs and C sources serve compilers, not programs.
for pattern in ("*.pyi", "*.pyx", "*.pxd", "*.c", "*.h"):
    for path in site.rglob(pattern):
        path.unlink()
