#include "kernels/ops/top_logits_host.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float OrNever(float logit) { return std::isnan(logit) ? kNever : logit; }

// Takes a token into a row's lists of at most `count`, of which `listed` are there, most likely
// first. Tokens come by id, so that one goes behind those as likely.
void Insert(int32_t id, float logit, int32_t count, int32_t& listed, int32_t* ids, float* values) {
  if (listed == count && logit <= values[count - 1]) {
    return;
  }
  const auto place = static_cast<int32_t>(
      std::upper_bound(values, values + listed, logit, std::greater<>()) - values);
  listed = std::min(listed + 1, count);
  std::copy_backward(ids + place, ids + listed - 1, ids + listed);
  std::copy_backward(values + place, values + listed - 1, values + listed);
  ids[place] = id;
  values[place] = logit;
}

}  // namespace

double LogSumExp(std::span<const float> logits) {
  float highest = kNever;
  for (const float logit : logits) {
    highest = std::max(highest, OrNever(logit));
  }
  if (std::isinf(highest)) {
    return highest;
  }
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(OrNever(logit)) - highest);
  }
  return highest + std::log(sum);
}

absl::Status TopLogitsOnHost(const ExecContext& /*context*/, const TopLogitsParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    const std::span<const float> logits(params.logits + row * params.vocab,
                                        static_cast<size_t>(params.vocab));
    int32_t* const ids = params.ids + row * params.count;
    float* const values = params.values + row * params.count;
    std::fill_n(ids, params.count, -1);
    std::fill_n(values, params.count, kNever);
    int32_t listed = 0;
    for (int32_t id = 0; id < params.vocab; ++id) {
      if (const float logit = OrNever(logits[static_cast<size_t>(id)]); logit > kNever) {
        Insert(id, logit, params.count, listed, ids, values);
      }
    }
    params.log_sums[row] = static_cast<float>(LogSumExp(logits));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels
