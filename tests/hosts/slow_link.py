"""A link between two Ethernet devices that delays, loses and limits frames, as a slow line does.

For kernels without ``tc netem``. Each direction has its own queue, and TCP notices everything: it
measures the delay, fills the queue and sends lost segments again.
"""

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME_BYTES = 1600


def open_device(name):
    """Make an Ethernet device whose frames are read from, and written to, a file."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return file


def run(near, far, bits_per_second, seconds, loss, queue_bytes=1 << 16):
    """Carry frames between two devices for ever.

    Args:
        near: Name of the one device.
        far: Name of the other.
        bits_per_second: Of each direction.
        seconds: A frame is under way for so long, once it has been sent.
        loss: Share of the frames that are lost.
        queue_bytes: How much may wait for its turn; what comes then is lost.
    """
    ends = {open_device(near): 0.0, open_device(far): 0.0}
    other = dict(zip(ends, reversed(ends), strict=True))
    print("ready", flush=True)
    under_way = []
    while True:
        pause = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable = select.select(list(ends), [], [], pause)[0]
        now = time.monotonic()
        for file in readable:
            frame = os.read(file, _FRAME_BYTES)
            free_at = max(ends[file], now)
            full = (free_at - now) * bits_per_second / 8 > queue_bytes
            if full or random.random() < loss:
                continue
            ends[file] = free_at + len(frame) * 8 / bits_per_second
            arrival = ends[file] + seconds
            heapq.heappush(under_way, (arrival, len(under_way), other[file], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, file, frame = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # the device is down: so is the link
                os.write(file, frame)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
