// Quality over bytes as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/eval/policy_sums.h"

namespace baton::lab {

// One policy on some cases.
struct PlotPoint {
  std::string kv;
  int64_t cases = 0;
  int64_t correct = 0;
  int64_t net_loss = 0;      // against dense
  double bytes_share = 0.0;  // resident, of bf16 keys and values
  bool chosen = false;
};

// The points of a table's policies.
std::vector<PlotPoint> PlotPoints(const eval::PolicySummary& summary);

// Correct answers in % over resident bytes in % of bf16 keys and values: one colour and shape for
// each format that occurs, titles that name policy and numbers, chosen points ringed and named.
// Axes, ticks, labels and a legend; SVG 1.1, one file without references. Policies may come from
// outside: they stay text. Without points there are empty axes.
std::string QualitySvg(std::string_view title, const std::vector<PlotPoint>& points);

}  // namespace baton::lab
