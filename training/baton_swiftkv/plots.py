"""Plots as SVG, with matplotlib."""

import pathlib


def _axes(width=7.0, height=4.0):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "baton"  # the same plot has the same bytes
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    return figure, axes


def _save(figure, path):
    from matplotlib import pyplot
    figure.savefig(pathlib.Path(path), metadata={"Date": None})
    pyplot.close(figure)


def accuracy(summary, path):
    """Correct answers of teacher and student by task, all lengths together."""
    figure, axes = _axes(8.0)
    tasks = sorted({task for task, _ in summary if task is not None})
    for offset, mode in ((-0.2, "teacher"), (0.2, "student")):
        shares = []
        for task in tasks:
            own = [sums for (name, _), sums in summary.items() if name == task]
            shares.append(100 * sum(sums[mode] for sums in own) / sum(sums["cases"] for sums in own))
        axes.bar([place + offset for place in range(len(tasks))], shares, 0.4, label=mode)
    axes.set_xticks(range(len(tasks)), tasks, rotation=45, ha="right")
    axes.set_ylabel("correct answers, %")
    axes.legend(loc="lower right")
    _save(figure, path)


def similarity(scores, recommended, path):
    """SimScore over the number of full layers."""
    figure, axes = _axes()
    axes.plot(range(len(scores)), scores, marker="o", markersize=3)
    axes.axhline(0.5, linestyle=":", color="gray")
    axes.axvline(recommended, linestyle="--", color="gray", label=f"recommended: {recommended}")
    axes.set_xlabel("full layers S")
    axes.set_ylabel("mean similarity with later layers' inputs")
    axes.legend(loc="lower right")
    _save(figure, path)


def losses(curves, path):
    """{label: metrics rows}: training loss (light) and held-out KL over steps."""
    figure, axes = _axes()
    for label, rows in curves.items():
        steps = [row for row in rows if "loss" in row]
        held_out = [row for row in rows if "held_out_kl" in row]
        line, = axes.plot([row["step"] for row in steps], [row["loss"] for row in steps], alpha=0.25,
                          linewidth=0.8)
        axes.plot([row["step"] for row in held_out], [row["held_out_kl"] for row in held_out], marker="o",
                  markersize=3, color=line.get_color(), label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("KL at temperature 2, times 4 (line: held-out)")
    axes.legend()
    _save(figure, path)
