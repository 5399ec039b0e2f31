// Random weights, made by all threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace baton::model {

// Every tensor of any name and shape, blocks of its rows as FillRandomTensor makes them, each with
// a seed of its own: other values than checkpoint::MakeRandomCheckpoint gives, of the same
// distribution, in a fraction of its time where there are many threads. Belongs to the thread that
// the pool belongs to.
class ThreadedRandomCheckpoint final : public checkpoint::Checkpoint {
 public:
  // Borrows the pool.
  ThreadedRandomCheckpoint(checkpoint::ModelConfig config,
                           uint64_t seed,
                           kernels::ThreadPool& pool);

  const checkpoint::ModelConfig& config() const override { return config_; }
  const std::string& directory() const override { return directory_; }
  bool Has(std::string_view) const override { return true; }
  std::vector<std::string> TensorNames() const override { return {}; }
  absl::StatusOr<checkpoint::TensorView> View(std::string_view name) const override;
  absl::StatusOr<kernels::Buffer> Read(std::string_view name,
                                       std::span<const int64_t> shape,
                                       kernels::DType dtype) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  checkpoint::ModelConfig config_;
  std::string directory_ = "random weights";
  uint64_t seed_;
  uint64_t fingerprint_;
  kernels::ThreadPool& pool_;
};

}  // namespace baton::model
