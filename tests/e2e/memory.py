"""Memory of service processes while something else goes on."""

import collections
import pathlib
import statistics
import subprocess
import threading
import time

PERIOD_SECONDS = 1.0
DEVICE = "device"
# Writable mappings of this size are pools and weights.
LARGE_MIB = 16


class MemoryWatch:
    """with MemoryWatch(services, device) as watch: samples, once a second, the memory of every
    service that runs and, with `device`, the used memory of the NVIDIA device. `services` may change
    meanwhile: one that is restarted is another one."""

    def __init__(self, services, device):
        self._services = services
        self._device = device
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        # [(seconds since the start, {service or DEVICE: MiB})]
        self.samples = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def growth(self, window_seconds):
        """[(name, [median MiB in each `window_seconds` of its life])] of all that have lived for three of them: the
        first is warm-up."""
        lives = collections.defaultdict(list)
        for at, sample in self.samples:
            for watched, mib in sample.items():
                lives[watched].append((at, mib))
        return [(getattr(watched, "name", watched), medians(life, window_seconds))
                for watched, life in lives.items() if life[-1][0] - life[0][0] >= 3 * window_seconds]

    def _sample(self):
        begin = time.monotonic()
        while True:
            sample = {service: memory_mib(service.process.pid) for service in list(self._services)}
            sample = {service: mib for service, mib in sample.items() if mib > 0}
            if self._device:
                sample[DEVICE] = device_mib()
            self.samples.append((time.monotonic() - begin, sample))
            if self._done.wait(PERIOD_SECONDS):
                return


def medians(life, window_seconds):
    """Of [(seconds, MiB)], those in each `window_seconds`; the last window is the one that ends with it, and what is
    left over is dropped before it."""
    begin, end = life[0][0], life[-1][0]
    count = int((end - begin) // window_seconds)
    begins = [begin + i * window_seconds for i in range(count - 1)] + [end - window_seconds]
    return [statistics.median(mib for at, mib in life if first <= at <= first + window_seconds) for first in begins]


def memory_mib(pid):
    """Resident memory of a process, with large writable mappings as if all of them were: pools are
    touched only as they are used. 0 for a process that has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return 0.0
    total = size = 0
    writable = False
    for line in lines:
        key, *fields = line.split()
        if "-" in key:
            writable = fields[0].startswith("rw")
        elif key == "Size:":
            size = int(fields[0])
        elif key == "Rss:":
            total += size if writable and size >= LARGE_MIB * 1024 else int(fields[0])
    return total / 1024


def device_mib():
    """Used memory of all devices."""
    used = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    return float(sum(int(line) for line in used.split()))
