// A model directory as HuggingFace publishes it, or random weights of its shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"

namespace baton::checkpoint {

struct CheckpointOptions {
  // Set: no weight file is read; every tensor is a pure function of (seed, tensor name), so that
  // workers agree. config.json is still needed.
  std::optional<uint64_t> random_weights_seed;
};

// Read-only and thread-safe after Open. Files stay mapped while it lives.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // Opens `directory`: config.json, generation_config.json (optional), model.safetensors or the
  // shards that model.safetensors.index.json maps (nothing else is read). Every header is checked
  // against its file's size. Errors name file, tensor and limit.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory,
                                                          const CheckpointOptions& options);

  virtual const ModelConfig& config() const = 0;
  virtual const std::string& directory() const = 0;
  // True when the files hold tensor `name`. Random weights have every name.
  virtual bool Has(std::string_view name) const = 0;
  // Names of the tensors of the files, ascending; empty for random weights.
  virtual std::vector<std::string> TensorNames() const = 0;
  // The stored form of tensor `name`: kNotFound names it, kUnimplemented names its dtype; random
  // weights have no stored form (kFailedPrecondition).
  virtual absl::StatusOr<TensorView> View(std::string_view name) const = 0;
  // Converts the elements of tensor `name` from `first` on to `dtype` (bf16 or f32; a bf16 target
  // rounds to nearest even), as many as `target` holds, after checking that its shape is `shape`:
  // with an empty target that is all, for who takes memory by a shape that only config.json has
  // told. kNotFound, kInvalidArgument or kDataLoss name the tensor.
  virtual absl::Status ReadPart(std::string_view name,
                                std::span<const int64_t> shape,
                                kernels::DType dtype,
                                int64_t first,
                                std::span<std::byte> target) const = 0;
  // The same of all elements.
  absl::StatusOr<kernels::Buffer> Read(std::string_view name,
                                       std::span<const int64_t> shape,
                                       kernels::DType dtype) const;
  // Digest (xxh3) over configuration and every tensor's name, dtype, shape and bytes of a sample;
  // equal for equal checkpoints. Cheap enough for start-up.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace baton::checkpoint
