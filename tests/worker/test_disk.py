"""The file system of the home: a small one of its own, really filled."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from tests.disks import fill
from xonar_prefect.worker.disk import HomeDisk


def test_what_is_free_is_read_with_what_must_stay_free(small_disk: Path) -> None:
    disk = HomeDisk(small_disk, least_free_mib=2, least_free_inodes=7).read()
    assert disk is not None
    assert (disk.path, disk.free_mib, disk.problem) == (str(small_disk), 4, None)
    assert (disk.least_free_mib, disk.least_free_inodes) == (2, 7)
    assert disk.free_inodes is not None
    assert 0 < disk.free_inodes < 200
    filler = fill(small_disk)
    full = HomeDisk(small_disk, least_free_mib=2, least_free_inodes=7).read()
    assert full is not None
    assert full.free_mib == 0
    filler.unlink()


def use_up_inodes(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for number in range(300):
            (directory / str(number)).touch()


def test_inodes_run_out_by_themselves(small_disk: Path) -> None:
    home = HomeDisk(small_disk, least_free_mib=0, least_free_inodes=7)
    use_up_inodes(small_disk)
    disk = home.read()
    assert disk is not None
    assert disk.free_inodes == 0
    assert disk.free_mib > 0


def test_a_directory_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert HomeDisk(tmp_path / "gone", least_free_mib=1, least_free_inodes=1).read() is None


def test_a_write_that_failed_is_tried_again_until_it_succeeds(small_disk: Path) -> None:
    home = HomeDisk(small_disk, least_free_mib=0, least_free_inodes=0)
    filler = fill(small_disk)
    with pytest.raises(OSError, match="No space left") as failed:
        (small_disk / "placement.json").write_bytes(bytes(100_000))
    assert home.has_failed(failed.value)
    for _ in range(2):
        disk = home.read()
        assert disk is not None
        assert disk.problem == os.strerror(errno.ENOSPC)
    filler.unlink()
    disk = home.read()
    assert disk is not None
    assert disk.problem is None
    assert [path.name for path in small_disk.iterdir()] == ["placement.json"]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EDQUOT, "quota"), True),
        (OSError(errno.EROFS, "read-only"), True),
        (PermissionError(errno.EACCES, "denied"), False),
        (FileNotFoundError(errno.ENOENT, "absent"), False),
        (ValueError("no"), False),
    ],
)
def test_only_what_somebody_may_mend_without_the_run_passes_by_itself(
    tmp_path: Path, error: Exception, passes: bool
) -> None:
    home = HomeDisk(tmp_path, least_free_mib=0, least_free_inodes=0)
    assert home.has_failed(error) is passes
    disk = home.read()
    assert disk is not None
    assert disk.problem is None  # the file system of the test is not full
