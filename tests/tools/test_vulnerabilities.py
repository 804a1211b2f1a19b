"""Known vulnerabilities: what a service is asked, and what a copy of the advisories says."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.vulnerabilities import look_up, requirements

VERSIONS = {"torch": "2.13.0+cpu", "rich": "14.0.0"}


def test_a_service_is_asked_for_public_versions() -> None:
    assert requirements({"torch": "2.13.0+cpu", "rich": "1.0"}) == "torch==2.13.0\nrich==1.0\n"


def archive(folder: Path, *affected: dict[str, Any], **fields: Any) -> Path:
    """Write an archive of one advisory."""
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as file:
        record = {"id": "PYSEC-1", "summary": "a hole", "affected": list(affected), **fields}
        file.writestr("PYSEC-1.json", json.dumps(record))
    return path


def of(name: str, *events: dict[str, str], versions: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        "versions": list(versions),
    }


@pytest.mark.parametrize(
    "affected",
    [
        of("Rich", {"introduced": "0"}, {"fixed": "14.0.1"}),
        of("rich", {"introduced": "13"}, {"last_affected": "14.0.0"}),
        of("rich", {"introduced": "14"}),
        of("rich", {"introduced": "1"}, {"fixed": "2"}, {"introduced": "3"}, {"fixed": "15"}),
        of("rich", versions=("13.9", "14.0")),
        of("torch", versions=("2.13.0",)),
    ],
)
def test_an_advisory_on_a_pinned_version_is_found(tmp_path: Path, affected: dict[str, Any]) -> None:
    code, text = look_up(VERSIONS, archive(tmp_path, affected))
    assert code == 1
    assert text.endswith("PYSEC-1, a hole")


@pytest.mark.parametrize(
    "affected",
    [
        of("rich", {"introduced": "0"}, {"fixed": "14.0.0"}),
        of("rich", {"introduced": "14.0.1"}),
        of("rich", {"introduced": "1"}, {"fixed": "2"}, {"introduced": "15"}),
        of("rich", versions=("13.9", "not a version")),
        of("poor", {"introduced": "0"}),
    ],
)
def test_one_on_other_versions_or_packages_is_not(tmp_path: Path, affected: dict[str, Any]) -> None:
    code, text = look_up(VERSIONS, archive(tmp_path, affected))
    assert code == 0
    assert "None of 2 packages" in text


def test_an_advisory_that_was_withdrawn_does_not_count(tmp_path: Path) -> None:
    path = archive(tmp_path, of("rich", {"introduced": "0"}), withdrawn="2026-01-01T00:00:00Z")
    with pytest.raises(ValueError, match="holds no advisory"):
        look_up(VERSIONS, path)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_what_is_no_archive_is_not_taken_for_a_clean_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "all.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an archive"):
        look_up(VERSIONS, path)
