#include "common/checkpoint/random_checkpoint.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/convert.h"
#include "common/checkpoint/fingerprint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_weights.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"

namespace baton::checkpoint {
namespace {

// Elements that are made at once: few enough to stay in a core's first-level cache.
constexpr size_t kBlockElements = 4096;

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
  absl::Status ReadPart(std::string_view name,
                        std::span<const int64_t> shape,
                        kernels::DType dtype,
                        int64_t first,
                        std::span<std::byte> target) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::string directory_;
  ModelConfig config_;
  uint64_t seed_;
  uint64_t fingerprint_ = 0;
};

absl::Status RandomCheckpoint::ReadPart(std::string_view name,
                                        std::span<const int64_t> shape,
                                        kernels::DType dtype,
                                        int64_t first,
                                        std::span<std::byte> target) const {
  const size_t element_bytes = kernels::DTypeBytes(dtype);
  const size_t count = target.size() / element_bytes;
  std::array<float, kBlockElements> made;
  for (size_t done = 0; done < count; done += kBlockElements) {
    const std::span<float> values =
        std::span<float>(made).first(std::min(kBlockElements, count - done));
    FillRandomTensor(seed_, name, shape, first + static_cast<int64_t>(done), values);
    if (config_.dtype != kernels::DType::kF32) {
      for (float& value : values) {
        value = kernels::BF16ToF32(kernels::F32ToBF16(value));
      }
    }
    const TensorView view = {.dtype = kernels::DType::kF32,
                             .shape = {static_cast<int64_t>(values.size())},
                             .bytes = std::as_bytes(values)};
    BATON_RETURN_IF_ERROR(ConvertTensor(
        view, dtype, target.subspan(done * element_bytes, values.size() * element_bytes)));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Checkpoint> MakeRandomCheckpoint(std::string directory,
                                                 ModelConfig config,
                                                 uint64_t seed) {
  return std::make_unique<RandomCheckpoint>(std::move(directory), std::move(config), seed);
}

}  // namespace baton::checkpoint
