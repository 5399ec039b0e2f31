#include "tests/gpu/support/shadowkv_basis.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {

std::vector<float> Numbers(const std::byte* data, DType dtype, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[i]
                                      : BF16ToF32(reinterpret_cast<const uint16_t*>(data)[i]);
  }
  return numbers;
}

std::vector<float> BasisOf(const ShadowKvPromptLayout& layout, const std::byte* prompt) {
  return Numbers(
      prompt + layout.basis, layout.config.dtype, layout.config.rank * layout.config.width());
}

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

std::vector<double> Shares(const ShadowKvProblem& problem, const std::vector<float>& basis) {
  const int64_t width = problem.layout().config.width();
  std::vector<double> shares(basis.size() / static_cast<size_t>(width));
  double all = 0.0;
  for (int64_t t = 0; t < problem.layout().prompt_tokens; ++t) {
    const float* key = problem.factored_key(t);
    all += Dot(key, key, width);
    for (size_t j = 0; j < shares.size(); ++j) {
      const double dot = Dot(key, basis.data() + static_cast<int64_t>(j) * width, width);
      shares[j] += dot * dot;
    }
  }
  const double whole = all > 0.0 ? all : 1.0;  // keys of zero
  std::transform(shares.begin(), shares.end(), shares.begin(), [&](double x) { return x / whole; });
  return shares;
}

double LeftOut(const ShadowKvProblem& problem, const std::vector<float>& basis) {
  double left = 1.0;
  for (const double share : Shares(problem, basis)) {
    left -= share;
  }
  return left;
}

std::vector<float> FactoredKey(const ShadowKvProblem& problem, int64_t token) {
  const ShadowKvConfig& config = problem.layout().config;
  const int64_t half = config.head_dim / 2;
  std::vector<float> factored(static_cast<size_t>(config.width()));
  const ShadowKvRope rope = problem.rope();
  for (int64_t i = 0; i < config.width(); ++i) {
    const int64_t pair = i % half;
    const float cosine = rope.cosines[token * half + pair];
    const float sine = rope.sines[token * half + pair];
    const bool low = i % config.head_dim < half;
    const float* key = problem.key(token);
    const float other = low ? key[i + half] * sine : -key[i - half] * sine;
    factored[static_cast<size_t>(i)] =
        key[i] * cosine + other - (problem.key_bias() == nullptr ? 0.0f : problem.key_bias()[i]);
  }
  return factored;
}

std::vector<float> DecodedCoefficients(const ShadowKvConfig& config,
                                       const std::byte* coefficients,
                                       int64_t tokens) {
  const int64_t count = tokens * config.rank;
  if (!config.int8_coefficients) {
    return Numbers(coefficients, config.dtype, count);
  }
  const auto* scales = reinterpret_cast<const uint16_t*>(
      coefficients + ShadowKvCoefficientLayout(config, tokens).scales);
  std::vector<float> decoded;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = i / config.rank / kShadowKvBlockTokens;
    decoded.push_back(static_cast<float>(reinterpret_cast<const int8_t*>(coefficients)[i]) *
                      F16ToF32(scales[group * config.rank + i % config.rank]));
  }
  return decoded;
}

}  // namespace baton::kernels::cuda
