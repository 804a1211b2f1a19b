"""What this program uses of Flower beyond its public API.

Public are the names that ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp`` export. All else
may change with any release of Flower, so it is imported here and nowhere else
(``tests/test_imports.py``): whoever raises the version in ``pyproject.toml`` mends this folder.
"""
