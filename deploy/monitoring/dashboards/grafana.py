"""Grafana's JSON for dashboards of rows of panels: only what the dashboards of this folder use."""

import dataclasses

# The JSON's version; Grafana from 10 on takes it, newer ones migrate it when they load it.
SCHEMA_VERSION = 39
ROW_WIDTH = 24
MOST_IN_A_LINE = 4
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass
class Query:
    """A PromQL expression; `legend` may name labels as {{label}}."""
    expr: str
    legend: str = ""


@dataclasses.dataclass
class Panel:
    """One panel. `unit` is Grafana's name of it (s, Bps, reqps, percentunit, short), `steps` are
    [(from value, colour)], the first from anything. `kind`: timeseries, stat or heatmap. Without `width`,
    of ROW_WIDTH, panels share a row."""
    title: str
    queries: list
    unit: str = "short"
    description: str = ""
    kind: str = "timeseries"
    width: int = 0
    steps: list = dataclasses.field(default_factory=list)
    stacked: bool = False
    maximum: float | None = None


@dataclasses.dataclass
class Row:
    title: str
    panels: list


@dataclasses.dataclass
class Dashboard:
    """`role` is a regular expression of the roles that the variable `instance` chooses from; empty:
    there is no such variable."""
    name: str
    title: str
    description: str
    rows: list
    role: str = ""


def to_json(dashboard):
    """The dashboard as Grafana imports it."""
    return {
        "uid": f"baton-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["baton"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "Baton", "tags": ["baton"], "asDropdown": True,
                   "includeVars": True, "keepTime": True}],
        "templating": {"list": _variables(dashboard.role)},
        "annotations": {"list": [_alerts()]},
        "panels": _laid_out(dashboard.rows),
    }


def _variables(role):
    def query(name, label, definition):
        return {"type": "query", "name": name, "label": label, "datasource": DATASOURCE,
                "definition": definition, "query": {"query": definition, "refId": name},
                "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]}}

    chosen = 'namespace=~"$namespace", model_name=~"$model"'
    variables = [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        query("namespace", "Namespace", "label_values(baton_build_info, namespace)"),
        query("model", "Model", 'label_values(baton_build_info{namespace=~"$namespace"}, model_name)'),
    ]
    if role:
        variables.append(query("instance", "Process",
                               f'label_values(baton_build_info{{role=~"{role}", {chosen}}}, instance)'))
    return variables


def _alerts():
    return {"name": "Alerts", "enable": True, "datasource": DATASOURCE, "iconColor": "red",
            "expr": 'ALERTS{alertname=~"Baton.+", alertstate="firing"}',
            "titleFormat": "{{alertname}}", "textFormat": "{{instance}} {{model_name}}"}


def _laid_out(rows):
    """Rows from top to bottom, their panels from left to right, in as many lines as they need."""
    panels, y = [], 0
    for row in rows:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": ROW_WIDTH, "h": 1}})
        x, y, height = 0, y + 1, 0
        share = ROW_WIDTH // (len(row.panels) if len(row.panels) <= MOST_IN_A_LINE else 3)
        for panel in row.panels:
            width = panel.width or share
            if x + width > ROW_WIDTH:
                x, y = 0, y + height
            height = 4 if panel.kind == "stat" else 8
            panels.append(_panel(panel) | {"gridPos": {"x": x, "y": y, "w": width, "h": height}})
            x += width
        y += height
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    return panels


def _panel(panel):
    options, custom = {
        "timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap}[panel.kind](panel)
    defaults = {"unit": panel.unit, "custom": custom}
    if panel.kind != "heatmap":
        defaults |= {"min": 0, "thresholds": {"mode": "absolute", "steps": _steps(panel.steps)}}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(panel, query, number) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _target(panel, query, number):
    return {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query.expr,
            "legendFormat": query.legend or "__auto", "editorMode": "code",
            "instant": panel.kind == "stat", "range": panel.kind != "stat",
            "format": "heatmap" if panel.kind == "heatmap" else "time_series"}


def _steps(steps):
    return [{"value": None if number == 0 else value, "color": color}
            for number, (value, color) in enumerate(steps or [(0, "green")])]


def _timeseries(panel):
    options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    custom = {"drawStyle": "line", "lineWidth": 1, "showPoints": "never", "spanNulls": False,
              "fillOpacity": 30 if panel.stacked else 5,
              "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
              "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"}}
    return options, custom


def _stat(_):
    return {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}, {}


def _heatmap(panel):
    return {"calculate": False, "yAxis": {"unit": panel.unit, "axisPlacement": "left"},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "cellGap": 1, "legend": {"show": True}, "tooltip": {"yHistogram": True},
            "rowsFrame": {"layout": "auto"}}, {}
