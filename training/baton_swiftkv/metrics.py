"""What a run reports: JSON lines in a file, a progress bar on the terminal."""

import json
import os
import pathlib
import sys
import time

from tqdm import tqdm


class Metrics:
    """A line for each step in `path`, and a bar. Where `path` is None, neither. A context manager.

    A run that goes on from step N drops the lines of later steps, so the file is one curve.
    """

    def __init__(self, path, steps, first_step):
        self._lines = self._bar = None
        if path is None:
            return
        path = pathlib.Path(path)
        _keep_until(path, first_step)
        self._lines = open(path, "a", encoding="utf-8")
        self._bar = tqdm(total=steps, initial=first_step, unit="step", file=sys.stderr,
                         mininterval=1.0 if sys.stderr.isatty() else 15.0)

    def step(self, row):
        """A step that was taken."""
        if self._lines is None:
            return
        self._write(row)
        self._bar.set_postfix_str(f"loss {row['loss']:.4f}, {row['tokens_per_s']:,.0f} tokens/s",
                                  refresh=False)
        self._bar.update()

    def note(self, row):
        """A measurement between two steps."""
        if self._lines is None:
            return
        self._write(row)
        self._bar.write(" ".join(f"{key}={_short(value)}" for key, value in row.items()), file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._lines is not None:
            self._lines.close()
            self._bar.close()

    def _write(self, row):
        self._lines.write(json.dumps(row) + "\n")
        self._lines.flush()


class Stopwatch:
    """Seconds between questions; a step's own numbers were waited for before."""

    def __init__(self):
        self._begin = time.perf_counter()

    def lap(self):
        now = time.perf_counter()
        seconds, self._begin = now - self._begin, now
        return seconds


def read_metrics(path):
    """The rows of a metrics file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _keep_until(path, step):
    if not path.exists():
        return
    kept = [row for row in _whole_lines(path) if row["step"] <= step and step > 0]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
    os.replace(temporary, path)


def _whole_lines(path):
    """Rows of a file whose last line may have been cut off by a kill."""
    rows = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _short(value):
    return f"{value:.5g}" if isinstance(value, float) else value
