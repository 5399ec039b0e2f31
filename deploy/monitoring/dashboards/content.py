"""What the dashboards show. Units, quantiles and filters are the same everywhere; see grafana.py for the form."""

import dataclasses

from grafana import Dashboard, Panel, Query, Row

CHOSEN = 'namespace=~"$namespace", model_name=~"$model"'
ROUTER = f'role="router", {CHOSEN}'
WORKERS = f'role!="router", {CHOSEN}'
# A worker of role `both` belongs to both pages.
PREFILL = f'role=~"prefill|both", {CHOSEN}'
DECODE = f'role=~"decode|both", {CHOSEN}'
ONE = ', instance=~"$instance"'

BAD_CODES = 'code=~"UNKNOWN|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|INTERNAL|UNAVAILABLE|DATA_LOSS"'
# The objectives of the rules (deploy/monitoring/prometheus-rule.yaml).
FIRST_TOKEN_SECONDS = 2.5
TOKEN_GAP_SECONDS = 0.1
NONE_IS_BEST = [(0, "green"), (1e-9, "red")]
ALL_OR_RED = [(0, "red"), (1, "green")]
SHARE_OF_POOL = [(0, "green"), (0.8, "yellow"), (0.95, "red")]


def total(metric, labels, by=""):
    """The sum of a gauge."""
    return f"sum by ({by}) ({metric}{{{labels}}})" if by else f"sum({metric}{{{labels}}})"


def of_each(metric, labels):
    """A gauge of every process."""
    return [Query(total(metric, labels, "instance"), "{{instance}}")]


def rate(metric, labels, by=""):
    """A counter's increase a second."""
    inner = f"rate({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def events(metric, labels, by):
    """A counter's increase in an hour, for what should not happen."""
    return [Query(f"sum by ({by}) (increase({metric}{{{labels}}}[1h]))",
                  " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",")))]


def mean(histogram, labels, by=""):
    return f"{rate(histogram + '_sum', labels, by)} / {rate(histogram + '_count', labels, by)}"


def quantile(number, histogram, labels):
    return f"histogram_quantile({number}, {rate(histogram + '_bucket', labels, 'le')})"


def quantiles(histogram, labels):
    return [Query(quantile(number, histogram, labels), f"p{round(number * 100)}")
            for number in (0.5, 0.95, 0.99)]


def latency(title, histogram, labels, limit=None, description=""):
    """Quantiles of a histogram in seconds, with a line where the limit is."""
    steps = [(0, "green"), (limit, "red")] if limit else []
    return Panel(title, quantiles(histogram, labels), "s", description, steps=steps)


def stage(title, name, labels, description=""):
    return latency(title, "baton_stage_duration_seconds", f'stage="{name}", {labels}', None, description)


def heatmap(title, histogram):
    return Panel(title, [Query(f"sum by (le) (increase({histogram}_bucket{{{ROUTER}}}[$__rate_interval]))",
                               "{{le}}")], "s", kind="heatmap")


def stat(title, expr, unit="short", steps=None, description="", legend=""):
    return Panel(title, [Query(expr, legend)], unit, description, "stat", 4, steps or [])


def statuses(labels):
    return Panel("Requests by status", [Query(f"{rate('baton_requests_total', labels, 'code')} > 0", "{{code}}")],
                 "reqps", "Requests ended, by gRPC status code.", stacked=True)


def pool(labels):
    return Panel("Pools in use", [Query(f"baton:kv_pool_used:ratio{{{labels}}}", "{{instance}} {{format}}")],
                 "percentunit", "Share of each KV format's memory that is not free. KV kept for conversations counts "
                 "in formats besides dense, though it makes room.", steps=SHARE_OF_POOL, maximum=1)


def overview():
    errors = f"{rate('baton_requests_total', f'{ROUTER}, {BAD_CODES}')} / {rate('baton_requests_total', ROUTER)}"
    ready_workers = " / ".join(total("baton_workers", labels) for labels in (f'{ROUTER}, state="ready"', ROUTER))
    return Dashboard("overview", "Baton / Overview", "Whether Baton serves, how much, and how fast.", [
        Row("Now", [
            stat("Routers ready", f"avg(baton_ready{{{ROUTER}}})", "percentunit", ALL_OR_RED),
            stat("Workers ready", ready_workers, "percentunit", ALL_OR_RED,
                 "As routers see them; one that is frozen or gone counts as well."),
            stat("Alerts firing", 'count(ALERTS{alertname=~"Baton.+", alertstate="firing"}) or vector(0)',
                 steps=NONE_IS_BEST),
            stat("Requests", rate("baton_requests_total", ROUTER), "reqps"),
            stat("Requests that fail", errors, "percentunit", [(0, "green"), (0.01, "red")],
                 "Share that ends by a fault or overload of the service."),
            stat("Tokens generated", rate("baton_generation_tokens_total", ROUTER), "short",
                 description="A second, of ended requests."),
        ]),
        Row("Traffic", [
            statuses(ROUTER),
            Panel("Tokens a second", [Query(rate("baton_prompt_tokens_total", ROUTER), "prompt"),
                                      Query(rate("baton_generation_tokens_total", ROUTER), "generated")],
                  "short", "Tokens of ended requests."),
            Panel("Requests in the router", [Query(total("baton_requests_running", ROUTER), "running"),
                                             Query(total("baton_requests_waiting", ROUTER), "waiting")]),
        ]),
        Row("What clients feel", [
            latency("Time to first token", "baton_time_to_first_token_seconds", ROUTER, FIRST_TOKEN_SECONDS),
            latency("Gap between tokens", "baton_inter_token_latency_seconds", ROUTER, TOKEN_GAP_SECONDS),
            latency("Whole request", "baton_e2e_request_latency_seconds", ROUTER),
        ]),
        Row("Where the time goes", [
            Panel("Mean time in each stage",
                  [Query(mean("baton_stage_duration_seconds", ROUTER, "stage"), "{{stage}}")], "s",
                  "As the router sees them; transfer and decode overlap.", width=16, stacked=True),
            dataclasses.replace(pool(WORKERS), width=8),
        ]),
        Row("Processes", [
            Panel("Ready", [Query(total("baton_ready", CHOSEN, "role, instance"), "{{role}} {{instance}}")],
                  description="1 while a process accepts work and makes progress.", maximum=1),
            Panel("Restarts", [Query(f"changes(process_start_time_seconds{{{CHOSEN}}}[1h])", "{{instance}}")],
                  description="In the last hour."),
            Panel("Versions", [Query(f"count by (role, version) (baton_build_info{{{CHOSEN}}})",
                                     "{{role}} {{version}}")], description="Processes of each version."),
            Panel("Trace spans lost (in an hour)", events("baton_trace_spans_dropped_total", CHOSEN, "instance"),
                  steps=NONE_IS_BEST),
        ]),
    ])


def router():
    mine = ROUTER + ONE
    return Dashboard("router", "Baton / Router", "The queue, the router's own cost, and what went wrong on the way.", [
        Row("Queue", [
            Panel("Requests", [Query(total("baton_requests_waiting", mine, "instance"), "waiting {{instance}}"),
                               Query(total("baton_requests_running", mine, "instance"), "running {{instance}}")]),
            Panel("Prompt tokens waiting", of_each("baton_waiting_tokens", mine)),
            latency("Time in the queue", "baton_request_queue_time_seconds", mine, 10),
        ]),
        Row("The router's own cost", [
            stage("Admit", "admit", mine, "From receiving a request until it is queued: tokenizing."),
            stage("Route", "route", mine, "From the choice of a pair until the decode worker is called."),
            stage("Reserve", "reserve", mine, "Until the decode worker granted memory."),
        ]),
        Row("Requests", [
            statuses(mine),
            latency("Time to first token", "baton_time_to_first_token_seconds", mine, FIRST_TOKEN_SECONDS),
            latency("Whole request", "baton_e2e_request_latency_seconds", mine),
        ]),
        Row("What went wrong (in an hour)", [
            Panel("Workers", [Query(total("baton_workers", mine, "worker_role, state"), "{{worker_role}} {{state}}")],
                  description="That the router knows, by role and state.", stacked=True),
            Panel("Attempts repeated", events("baton_request_retries_total", mine, "reason"),
                  description="On another worker, because the first refused, was busy or was lost."),
            Panel("Answers continued", events("baton_resume_total", mine, "outcome"),
                  description="Answers whose decode worker was lost on the way."),
            Panel("Streams without their last message", events("baton_stream_incomplete_total", mine, "reason"),
                  description="By the worker's role."),
        ]),
    ], "router")


def worker_rows(mine):
    """What prefill and decode workers have in common."""
    steps = rate("baton_step_duration_seconds_count", mine, "instance")
    return [
        Row("Steps", [
            latency("Duration of a step", "baton_step_duration_seconds", mine),
            Panel("Tokens through the model", [Query(rate("baton_step_tokens_total", mine, "phase, instance"),
                                                     "{{phase}} {{instance}}")], description="A second."),
            Panel("Tokens in a step", [Query(f"{rate('baton_step_tokens_total', mine, 'instance')} / {steps}",
                                             "{{instance}}")], description="The mean size of a batch."),
        ]),
        Row("Memory", [
            pool(mine),
            Panel("Dense pool in tokens", [Query(
                f"sum by (state) (baton_kv_pages{{{mine}}} * on (namespace, instance) group_left baton_kv_page_tokens)",
                "{{state}}")], stacked=True),
            Panel("Pools of other formats", [Query(total("baton_kv_format_pool_bytes", mine, "format, state"),
                                                   "{{format}} {{state}}")], "bytes"),
        ]),
        Row("Requests", [
            statuses(mine),
            Panel("Sequences", [Query(total("baton_requests_running", mine, "instance"), "running {{instance}}"),
                                Query(total("baton_requests_waiting", mine, "instance"), "waiting {{instance}}")]),
            Panel("Ready", of_each("baton_ready", mine), maximum=1),
        ]),
    ]


def prefill():
    mine = PREFILL + ONE
    return Dashboard("prefill", "Baton / Prefill", "Prompts: waiting, computed, shipped.", [
        Row("Prompts", [
            Panel("Prompt tokens not yet computed", of_each("baton_waiting_tokens", mine)),
            stage("Waiting for the first step", "prefill_queue", mine),
            stage("Computing", "prefill_forward", mine, "Encoding included."),
            stage("Encoding KV", "compress", mine, "Of prompts in formats besides dense."),
            Panel("Prompt tokens", [Query(rate("baton_prompt_tokens_total", mine, "instance"), "{{instance}}")],
                  description="A second, of ended requests."),
            stage("Shipping KV after the prompt", "transfer", mine,
                  "Most of the KV travels while later layers compute."),
            Panel("KV shipped", [Query(rate("baton_kv_wire_bytes_total", mine, "instance, transport"),
                                       "{{instance}} {{transport}}")], "Bps"),
        ]),
        *worker_rows(mine),
    ], "prefill|both")


def decode():
    mine = DECODE + ONE
    cached = rate("baton_prompt_tokens_cached_total", mine)
    return Dashboard("decode", "Baton / Decode", "Sequences: reserved, generated, kept for the next turn.", [
        Row("Answers", [
            Panel("Tokens generated",
                  [Query(rate("baton_generation_tokens_total", mine, "instance"), "{{instance}}")],
                  description="A second, of ended requests."),
            stage("Generating", "decode", mine),
            stage("Decoding landed KV", "decompress", mine, "Of prompts in formats besides dense."),
            stage("Waiting for the first step", "decode_queue", mine,
                  "From having a prompt's KV until a step takes its next token."),
            stage("First step", "first_decode_step", mine),
        ]),
        *worker_rows(mine),
        Row("Reservations", [
            Panel("Leases", of_each("baton_kv_leases_active", mine),
                  description="Reservations granted whose KV has not come yet."),
            Panel("Pages reserved", of_each("baton_kv_reserved_pages", mine)),
            Panel("Leases that ran out (in an hour)", events("baton_kv_leases_expired_total", mine, "instance, side"),
                  steps=NONE_IS_BEST),
        ]),
        Row("Conversations", [
            Panel("Turns", [Query(rate("baton_session_turns_total", mine, "kv"), "{{kv}}")], "reqps",
                  "Turns that went on from kept KV, and those that started fresh."),
            Panel("Prompt tokens from kept KV",
                  [Query(f"{cached} / {rate('baton_prompt_tokens_total', mine)}", "share")], "percentunit", maximum=1),
            Panel("Conversations kept", of_each("baton_kv_kept_sessions", mine)),
            Panel("Memory of kept KV", of_each("baton_kv_kept_bytes", mine), "bytes"),
        ]),
    ], "decode|both")


def kv_transfer():
    wire, logical = "baton_kv_wire_bytes_total", "baton_kv_logical_bytes_total"
    shipped = f'role="prefill", {CHOSEN}'
    faults = 'reason!~"CANCELLED|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED"'
    return Dashboard("kv-transfer", "Baton / KV transfer", "The hand-off of KV from prefill to decode.", [
        Row("Volume", [
            Panel("Bytes a second", [Query(rate(logical, shipped), "at 16 bits"),
                                     Query(rate(wire, shipped), "on the wire")], "Bps"),
            Panel("By format", [Query(rate(wire, shipped, "format"), "{{format}}")], "Bps", stacked=True),
            Panel("Compression", [Query(f"baton:kv_compression:ratio_rate5m{{{CHOSEN}}}", "{{model_name}}")],
                  description="Bytes at 16 bits for each byte on the wire."),
        ]),
        Row("Transport", [
            Panel("By transport", [Query(rate(wire, shipped, "transport"), "{{transport}}")], "Bps", stacked=True),
            Panel("Workers that use each", [Query(f"count by (transport) (baton_kv_transport_info{{{CHOSEN}}})",
                                                  "{{transport}}")], description="Since they started."),
            stage("Transfer", "transfer", ROUTER,
                  "From the first token until decode has all KV, as the router sees it."),
        ]),
        Row("Held memory", [
            Panel("Leases", of_each("baton_kv_leases_active", CHOSEN),
                  description="Reservations granted whose KV has not come yet."),
            Panel("Landing slots (ucx)", [Query(total("baton_kv_landing_slots", CHOSEN, "instance, state"),
                                                "{{instance}} {{state}}")]),
            Panel("Landing memory (ucx)", of_each("baton_kv_landing_bytes", CHOSEN),
                  "bytes"),
            Panel("Memory of ended requests", of_each("baton_kv_orphaned_bytes", CHOSEN), "bytes",
                  "That a step or a transfer still looks at; it must go back."),
            Panel("Pools held for nobody", [Query(
                f"baton:kv_pool_used:ratio{{{CHOSEN}}} and on (namespace, instance) baton:work:count == 0",
                "{{instance}} {{format}}")], "percentunit",
                "Used while the worker has nothing to do. KV kept for conversations counts in formats besides dense.",
                steps=NONE_IS_BEST),
        ]),
        Row("Faults (in an hour)", [
            Panel("Leases that ran out", events("baton_kv_leases_expired_total", CHOSEN, "instance, side"),
                  steps=NONE_IS_BEST),
            Panel("Checksum failures", events("baton_kv_chunk_checksum_failures_total", CHOSEN, "instance"),
                  steps=NONE_IS_BEST),
            Panel("Streams that ended by a fault",
                  events("baton_stream_incomplete_total", f"{CHOSEN}, {faults}", "role, reason"), steps=NONE_IS_BEST),
        ]),
    ])


def slo():
    bad = {window: f"baton:slo_bad:ratio_rate{window}{{{CHOSEN}}}" for window in ("5m", "30m", "1h", "6h")}
    burn = [Panel(f"Burn rate, {window}", [Query(f"{bad[window]} / 0.01", "{{model_name}} {{slo}}")],
                  description=f"1 uses up the budget just in a month; both windows above {limit} alert.",
                  width=12, steps=[(0, "green"), (limit, "red")])
            for window, limit in (("5m", 14.4), ("1h", 14.4), ("30m", 6), ("6h", 6))]
    first_tokens = "baton_time_to_first_token_seconds"
    within = [Query(rate(f"{first_tokens}_bucket", f'{ROUTER}, le="{limit}"')
                    + " / " + rate(f"{first_tokens}_count", ROUTER), f"within {limit} s")
              for limit in ("0.25", "0.5", "2.5", "7.5")]
    return Dashboard("slo", "Baton / SLO", "99 % of first tokens within 2.5 s, of gaps between tokens within 0.1 s, "
                     "and of requests without a fault of the service.", [
        Row("Last six hours", [
            Panel("Events that met their objective", [Query(f"1 - {bad['6h']}", "{{model_name}} {{slo}}")],
                  "percentunit", kind="stat", steps=[(0, "red"), (0.99, "green")]),
        ]),
        Row("Burn rate", burn),
        Row("Events", [
            Panel("Events", [Query(f"baton:slo_events:rate5m{{{CHOSEN}}}", "{{model_name}} {{slo}}")], "ops"),
            Panel("Events that missed", [Query(f"baton:slo_bad:rate5m{{{CHOSEN}}}", "{{model_name}} {{slo}}")], "ops"),
            Panel("First tokens within", within, "percentunit", maximum=1),
        ]),
        Row("Distributions", [
            heatmap("Time to first token", "baton_time_to_first_token_seconds"),
            heatmap("Gap between tokens", "baton_inter_token_latency_seconds"),
        ]),
    ])


DASHBOARDS = [overview, router, prefill, decode, kv_transfer, slo]
