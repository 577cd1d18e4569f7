"""Fixtures of the embedded cluster for all tests."""

pytest_plugins = ["localcluster.pytest_plugin"]
