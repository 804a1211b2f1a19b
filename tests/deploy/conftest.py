"""What commands change in this process, taken back after each test."""

import os

import pytest


@pytest.fixture(autouse=True)
def umask():
    """Give the next test the mask that this one began with."""
    mask = os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
