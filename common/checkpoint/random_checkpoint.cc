#include "common/checkpoint/random_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/convert.h"
#include "common/checkpoint/fingerprint.h"
#include "common/checkpoint/random_weights.h"
#include "kernels/core/half.h"

namespace baton::checkpoint {
namespace {

class RandomCheckpoint : public Checkpoint {
 public:
  RandomCheckpoint(std::string directory, ModelConfig config, uint64_t seed)
      : directory_(std::move(directory)), config_(std::move(config)), seed_(seed) {
    Fingerprint fingerprint;
    fingerprint.Add(config_);
    fingerprint.Add("random weights seed", seed);
    fingerprint_ = fingerprint.Digest();
  }

  const ModelConfig& config() const override { return config_; }
  const std::string& directory() const override { return directory_; }
  bool Has(std::string_view) const override { return true; }
  std::vector<std::string> TensorNames() const override { return {}; }
  absl::StatusOr<TensorView> View(std::string_view name) const override {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor `", std::string(name), "` is random and not stored"));
  }
  absl::StatusOr<kernels::Buffer> Read(std::string_view name,
                                       std::span<const int64_t> shape,
                                       kernels::DType dtype) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::string directory_;
  ModelConfig config_;
  uint64_t seed_;
  uint64_t fingerprint_ = 0;
};

absl::StatusOr<kernels::Buffer> RandomCheckpoint::Read(std::string_view name,
                                                       std::span<const int64_t> shape,
                                                       kernels::DType dtype) const {
  TensorView values;
  values.dtype = kernels::DType::kF32;
  values.shape.assign(shape.begin(), shape.end());
  const size_t count = static_cast<size_t>(values.num_elements());
  kernels::Buffer widened(count * sizeof(float));
  const std::span<float> floats(widened.as<float>(), count);
  FillRandomTensor(seed_, name, shape, floats);
  if (config_.dtype != kernels::DType::kF32) {
    for (float& value : floats) {
      value = kernels::BF16ToF32(kernels::F32ToBF16(value));
    }
  }
  if (dtype == kernels::DType::kF32) {
    return widened;
  }
  values.bytes = widened.bytes();
  kernels::Buffer narrowed(count * kernels::DTypeBytes(dtype));
  BATON_RETURN_IF_ERROR(ConvertTensor(values, dtype, narrowed.bytes()));
  return narrowed;
}

}  // namespace

std::unique_ptr<Checkpoint> MakeRandomCheckpoint(std::string directory,
                                                 ModelConfig config,
                                                 uint64_t seed) {
  return std::make_unique<RandomCheckpoint>(std::move(directory), std::move(config), seed);
}

}  // namespace baton::checkpoint
