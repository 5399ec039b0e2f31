// What tests of the basis and the coefficients of format `shadowkv` judge them by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/kv_format/shadowkv.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {

// `count` elements of an array of `dtype`.
std::vector<float> Numbers(const std::byte* data, DType dtype, int64_t count);

// The basis of a prompt section, [rank][width].
std::vector<float> BasisOf(const ShadowKvPromptLayout& layout, const std::byte* prompt);

// Coefficients of `tokens` tokens as they decode, [tokens][rank].
std::vector<float> DecodedCoefficients(const ShadowKvConfig& config,
                                       const std::byte* coefficients,
                                       int64_t tokens);

double Dot(const float* a, const float* b, int64_t n);

// Energy of the prompt's keys before RoPE along each row of a basis, over the whole.
std::vector<double> Shares(const ShadowKvProblem& problem, const std::vector<float>& basis);

// Energy that the basis leaves out, over the whole.
double LeftOut(const ShadowKvProblem& problem, const std::vector<float>& basis);

// A stored key of the prompt before RoPE, less the bias.
std::vector<float> FactoredKey(const ShadowKvProblem& problem, int64_t token);

}  // namespace baton::kernels::cuda
