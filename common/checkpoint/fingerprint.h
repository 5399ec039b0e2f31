// Identity of a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_view.h"

namespace baton::checkpoint {

// Collects a digest (xxh3, 64 bits) over a configuration and tensors, in the order given. Of each
// tensor, name, dtype, shape and three samples of 1 KiB (begin, middle, end) enter, so that a
// model of any size takes milliseconds. Not thread-safe.
class Fingerprint {
 public:
  void Add(const ModelConfig& config);
  void Add(std::string_view name, const TensorView& tensor);
  void Add(std::string_view name, uint64_t value);
  uint64_t Digest() const;

 private:
  std::string collected_;
};

}  // namespace baton::checkpoint
