"""`pytest tests/golden --update-golden` writes the files anew; look at the difference before you keep it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.yaml anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """False as well when pytest was started elsewhere and never read this file's option."""
    return bool(request.config.getoption("--update-golden", default=False))
