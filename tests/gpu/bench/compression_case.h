// What a benchmark of compression times: the ops that turn one layer of a prompt into a format.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"

namespace baton::kernels::cuda {

// At the heads of Llama-3.1-8B. A case takes no memory of the device before Prepare and frees it
// when it is destroyed.
class CompressionCase {
 public:
  // Layers are taken in turn, as a model takes them, so that little of a long prompt is still in a
  // cache when its turn comes.
  static constexpr int32_t kLayers = 4;
  // Calls that may be made for one layer.
  static constexpr int32_t kMostLayerCalls = 96;

  static constexpr int32_t kKvHeads = 8;
  static constexpr int32_t kHeads = 32;
  static constexpr int32_t kHeadDim = 128;
  static constexpr int64_t kWidth = int64_t{kKvHeads} * kHeadDim;  // of a token's keys

  // `ops`: their names in the op table.
  CompressionCase(std::string ops, int32_t tokens) : ops_(std::move(ops)), tokens_(tokens) {}
  virtual ~CompressionCase() = default;
  CompressionCase(const CompressionCase&) = delete;
  CompressionCase& operator=(const CompressionCase&) = delete;

  const std::string& ops() const { return ops_; }
  int32_t tokens() const { return tokens_; }  // of the prompt

  // Allocates and fills; waits for the queue. Once, before all that follows.
  virtual absl::Status Prepare(const ExecContext& context) = 0;
  // How far the ops are from the CPU back end: a share of what is compared, or of the largest
  // value. Of a case with at most CompressionPrompt::kDistinctTokens tokens, before any Run.
  virtual absl::StatusOr<double> Error(const ExecContext& context) = 0;
  // Gives the queue the calls for one layer.
  virtual absl::Status Run(const ExecContext& context, int32_t layer) = 0;
  // That a Run reads and writes at least.
  virtual double bytes() const = 0;
  // Multiplications and additions of a Run's matrix products; 0 if it has none.
  virtual double operations() const = 0;

 private:
  std::string ops_;
  int32_t tokens_;
};

}  // namespace baton::kernels::cuda
