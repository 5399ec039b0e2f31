// The metric names of vLLM that dashboards and the Gateway API inference extension read
// (serving.md 2.1 "What GAIE expects"): opt-in, derived from our own families at scrape time.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace baton::metrics {

// vllm: families that `families` allow to derive: num_requests_running, num_requests_waiting,
// kv_cache_usage_perc (0-1), cache_config_info{block_size,num_gpu_blocks}, the latency histograms
// (first token, between tokens, whole request, queue, prefill, decode) and the token counters. A
// family that is absent gives no alias; there is no lora_requests_info, for there are no adapters.
// Histograms keep our buckets, which have vLLM's bounds but for prefill and decode.
std::vector<prometheus::MetricFamily> VllmAliases(
    const std::vector<prometheus::MetricFamily>& families);

}  // namespace baton::metrics
