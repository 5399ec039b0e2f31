// The linear layers of a model: op `matmul`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

struct LinearLayer {
  std::string name = {};
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool wide = false;  // logits
  // What a model has with the product, as MatmulParams has it.
  bool norm = false;
  int64_t rotated_heads = 0;  // of kHeadDim
  bool gated = false;
};

// How what goes with a product is done: not at all, by the op itself, or by ops of their own.
enum class MatmulParts { kNone, kFused, kSeparate };

// All rows in one call; every layer of the model has a weight of its own.
class MatmulCase : public BenchCase {
 public:
  static constexpr int64_t kHeadDim = 128;

  MatmulCase(const LinearLayer& layer, int32_t rows, MatmulParts parts);

  const LinearLayer& layer() const { return layer_; }
  MatmulParts parts() const { return parts_; }

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Of the last columns of the first and of the last row, of the product alone.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // The weight, and x and the result once each.
  double bytes() const override;
  // Multiplications and additions.
  double operations() const;

 private:
  int64_t rows() const { return shape().rows; }
  size_t out_element() const { return layer_.wide ? sizeof(float) : sizeof(uint16_t); }
  MatmulParams Params(int32_t layer) const;
  // Adds what goes with it.
  void AddParts(MatmulParams& params) const;
  // Results of a row from column `first` on, those of the device and of the host.
  absl::StatusOr<std::vector<float>> OnDevice(int64_t row, int64_t first) const;
  absl::StatusOr<std::vector<float>> OnHost(int64_t row, int64_t first) const;

  LinearLayer layer_;
  MatmulParts parts_;
  DeviceArena arena_;
  uint16_t* weights_ = nullptr;   // [layers][out_features][in_features]
  uint16_t* x_ = nullptr;         // [rows][in_features]
  std::byte* out_ = nullptr;      // [rows][out_features]
  float* norm_weight_ = nullptr;  // [in_features]
  float* cosines_ = nullptr;      // [rows][kHeadDim / 2]
  float* sines_ = nullptr;        // [rows][kHeadDim / 2]
  uint16_t* normed_ = nullptr;    // [rows][in_features]
  uint16_t* gate_up_ = nullptr;   // [rows][out_features]
};

}  // namespace baton::kernels::cuda
