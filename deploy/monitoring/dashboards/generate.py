#!/usr/bin/env python3
"""Writes the JSON files of this folder from content.py. Import them into Grafana, or let it provision the folder.

  deploy/monitoring/dashboards/generate.py"""

import json
import pathlib

import content
import grafana

FOLDER = pathlib.Path(__file__).resolve().parent


def texts():
    """{path: text} of every dashboard."""
    dashboards = [make() for make in content.DASHBOARDS]
    return {FOLDER / f"{dashboard.name}.json": one_panel_a_line(grafana.to_json(dashboard))
            for dashboard in dashboards}


def one_panel_a_line(board):
    """The JSON text, in a form whose changes are easy to read."""
    head = json.dumps({key: value for key, value in board.items() if key != "panels"}, indent=1)
    panels = ",\n  ".join(map(json.dumps, board["panels"]))
    return f'{head.removesuffix("}").rstrip()},\n "panels": [\n  {panels}\n ]\n}}\n'


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text, encoding="utf-8")
