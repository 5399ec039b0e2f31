#include "common/metrics/vllm_aliases.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"

#include "common/metrics/metric_families.h"

namespace baton::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

struct Alias {
  std::string_view ours;
  std::string_view theirs;
};

constexpr std::array kRenamed = {
    Alias{kRequestsRunning.name, "vllm:num_requests_running"},
    Alias{kRequestsWaiting.name, "vllm:num_requests_waiting"},
    Alias{kTimeToFirstToken.name, "vllm:time_to_first_token_seconds"},
    Alias{kInterTokenLatency.name, "vllm:inter_token_latency_seconds"},
    Alias{kRequestLatency.name, "vllm:e2e_request_latency_seconds"},
    Alias{kRequestQueueTime.name, "vllm:request_queue_time_seconds"},
    Alias{kPromptTokens.name, "vllm:prompt_tokens_total"},
    Alias{kCachedPromptTokens.name, "vllm:prompt_tokens_cached_total"},
    Alias{kGenerationTokens.name, "vllm:generation_tokens_total"},
};

// Stages of kStageDuration that vLLM has a histogram for.
constexpr std::array kStages = {
    Alias{stage::kPrefillForward, "vllm:request_prefill_time_seconds"},
    Alias{stage::kDecode, "vllm:request_decode_time_seconds"},
};

const MetricFamily* Find(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto it = std::find_if(
      families.begin(), families.end(), [&](const auto& family) { return family.name == name; });
  return it == families.end() || it->metric.empty() ? nullptr : &*it;
}

// Labels of `metric` without `dropped`.
std::vector<ClientMetric::Label> LabelsWithout(const ClientMetric& metric,
                                               std::string_view dropped) {
  std::vector<ClientMetric::Label> labels = metric.label;
  std::erase_if(labels, [&](const auto& label) { return label.name == dropped; });
  return labels;
}

bool HasLabel(const ClientMetric& metric, std::string_view name, std::string_view value) {
  return std::any_of(metric.label.begin(), metric.label.end(), [&](const auto& label) {
    return label.name == name && label.value == value;
  });
}

void AppendStageAliases(const std::vector<MetricFamily>& families,
                        std::vector<MetricFamily>& aliases) {
  const MetricFamily* stages = Find(families, kStageDuration.name);
  if (stages == nullptr) {
    return;
  }
  for (const Alias& alias : kStages) {
    for (const ClientMetric& metric : stages->metric) {
      if (HasLabel(metric, "stage", alias.ours)) {
        ClientMetric renamed = metric;
        renamed.label = LabelsWithout(metric, "stage");
        aliases.push_back({std::string(alias.theirs), stages->help, stages->type, {renamed}});
      }
    }
  }
}

MetricFamily GaugeFamilyOf(std::string name, std::string help, ClientMetric metric) {
  return {std::move(name), std::move(help), prometheus::MetricType::Gauge, {std::move(metric)}};
}

// Usage and geometry of the page pool, from the pages by state.
void AppendPoolAliases(const std::vector<MetricFamily>& families,
                       std::vector<MetricFamily>& aliases) {
  const MetricFamily* pages = Find(families, kKvPages.name);
  const MetricFamily* page_tokens = Find(families, kKvPageTokens.name);
  if (pages == nullptr || page_tokens == nullptr) {
    return;
  }
  double total = 0;
  double free = 0;
  for (const ClientMetric& metric : pages->metric) {
    total += metric.gauge.value;
    free += HasLabel(metric, "state", "free") ? metric.gauge.value : 0;
  }
  ClientMetric usage;
  usage.label = LabelsWithout(pages->metric.front(), "state");
  ClientMetric config = usage;
  usage.gauge.value = total > 0 ? (total - free) / total : 0;
  config.label.push_back(
      {"block_size",
       std::to_string(static_cast<int64_t>(page_tokens->metric.front().gauge.value))});
  config.label.push_back({"num_gpu_blocks", std::to_string(static_cast<int64_t>(total))});
  config.gauge.value = 1;
  aliases.push_back(
      GaugeFamilyOf("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", usage));
  aliases.push_back(
      GaugeFamilyOf("vllm:cache_config_info", "Page size and number of pages.", config));
}

}  // namespace

std::vector<MetricFamily> VllmAliases(const std::vector<MetricFamily>& families) {
  std::vector<MetricFamily> aliases;
  for (const Alias& alias : kRenamed) {
    if (const MetricFamily* family = Find(families, alias.ours)) {
      aliases.push_back(*family);
      aliases.back().name = alias.theirs;
    }
  }
  AppendStageAliases(families, aliases);
  AppendPoolAliases(families, aliases);
  return aliases;
}

}  // namespace baton::metrics
