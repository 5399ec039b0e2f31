// A product with what belongs to it (MatmulParams) as ops of their own, one after the other.
#pragma once

#include "absl/status/status.h"

#include "kernels/ops/params.h"

namespace baton::kernels {

// Calls the ops of one back end, each with `context` and its own parameters, as far as `params`,
// which are valid, ask for them, until one fails. kMatmul is given nothing but a product.
template <auto kRmsNorm, auto kMatmul, auto kRope, auto kSiluMul, typename... Context>
absl::Status RunMatmulParts(const MatmulParams& params, const Context&... context) {
  const PackedMatrix& weight = params.weight;
  MatmulParams product = params;
  product.norm = {};
  product.rope = {};
  product.gate_up = nullptr;
  absl::Status status;
  if (params.norm.weight != nullptr) {
    product.x = params.norm.normed;
    product.x_stride = weight.in_features;
    status = kRmsNorm(context...,
                      RmsNormParams{.x = params.x,
                                    .x_stride = params.x_stride,
                                    .weight = params.norm.weight,
                                    .epsilon = params.norm.epsilon,
                                    .rows = params.rows,
                                    .dim = weight.in_features,
                                    .out = params.norm.normed,
                                    .out_stride = weight.in_features});
  }
  if (params.gate_up != nullptr) {
    product.out = params.gate_up;
    product.out_stride = weight.out_features;
  }
  if (status.ok()) {
    status = kMatmul(context..., product);
  }
  if (status.ok() && params.rope.cosines != nullptr) {
    status = kRope(context...,
                   RopeParams{.x = params.out,
                              .x_stride = params.out_stride,
                              .cosines = params.rope.cosines,
                              .sines = params.rope.sines,
                              .rows = params.rows,
                              .heads = params.rope.heads,
                              .half_dim = params.rope.half_dim});
  }
  if (status.ok() && params.gate_up != nullptr) {
    status = kSiluMul(context...,
                      SiluMulParams{.gate_up = params.gate_up,
                                    .gate_up_stride = weight.out_features,
                                    .rows = params.rows,
                                    .dim = weight.out_features / 2,
                                    .out = params.out,
                                    .out_stride = params.out_stride});
  }
  return status;
}

}  // namespace baton::kernels
