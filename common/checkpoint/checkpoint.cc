#include "common/checkpoint/checkpoint.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/convert.h"
#include "common/checkpoint/fingerprint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_checkpoint.h"
#include "common/checkpoint/read_file.h"
#include "common/checkpoint/safetensors_file.h"
#include "common/checkpoint/tensor_view.h"
#include "common/checkpoint/weight_index.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"

namespace baton::checkpoint {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxIndexBytes = 256 << 20;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Weights in safetensors files.
class FileCheckpoint : public Checkpoint {
 public:
  FileCheckpoint(std::string directory, ModelConfig config)
      : directory_(std::move(directory)), config_(std::move(config)) {}

  // Maps the weight files and notes which of them holds each tensor.
  absl::Status OpenWeights();

  const ModelConfig& config() const override { return config_; }
  const std::string& directory() const override { return directory_; }
  bool Has(std::string_view name) const override { return files_.find(name) != files_.end(); }
  std::vector<std::string> TensorNames() const override;
  absl::StatusOr<TensorView> View(std::string_view name) const override;
  absl::Status ReadPart(std::string_view name,
                        std::span<const int64_t> shape,
                        kernels::DType dtype,
                        int64_t first,
                        std::span<std::byte> target) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  absl::Status OpenShards(const std::string& index_text);
  absl::Status AddShard(const std::string& file, const std::vector<std::string>& tensors);
  void ComputeFingerprint();

  std::string directory_;
  ModelConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, const SafetensorsFile*, std::less<>> files_;
  uint64_t fingerprint_ = 0;
};

absl::Status FileCheckpoint::OpenWeights() {
  absl::StatusOr<SafetensorsFile> single =
      SafetensorsFile::Open(absl::StrCat(directory_, "/", kSingleFile));
  if (single.ok()) {
    shards_.push_back(std::make_unique<SafetensorsFile>(*std::move(single)));
    for (std::string& name : shards_.back()->Names()) {
      files_.emplace(std::move(name), shards_.back().get());
    }
  } else if (!absl::IsNotFound(single.status())) {
    return single.status();
  } else {
    const std::string index_path = absl::StrCat(directory_, "/", kIndexFile);
    absl::StatusOr<std::string> index = ReadFile(index_path, kMaxIndexBytes);
    if (absl::IsNotFound(index.status())) {
      return absl::NotFoundError(
          absl::StrCat(directory_, " holds neither ", kSingleFile, " nor ", kIndexFile));
    }
    BATON_RETURN_IF_ERROR(index.status());
    BATON_RETURN_IF_ERROR(WithContext(OpenShards(*index), index_path));
  }
  ComputeFingerprint();
  return absl::OkStatus();
}

absl::Status FileCheckpoint::OpenShards(const std::string& index_text) {
  BATON_ASSIGN_OR_RETURN(const WeightIndex index, ParseWeightIndex(index_text));
  for (const auto& [file, tensors] : index) {
    BATON_RETURN_IF_ERROR(AddShard(file, tensors));
  }
  return absl::OkStatus();
}

absl::Status FileCheckpoint::AddShard(const std::string& file,
                                      const std::vector<std::string>& tensors) {
  BATON_ASSIGN_OR_RETURN(SafetensorsFile shard,
                         SafetensorsFile::Open(absl::StrCat(directory_, "/", file)));
  shards_.push_back(std::make_unique<SafetensorsFile>(std::move(shard)));
  for (const std::string& tensor : tensors) {
    if (!shards_.back()->Has(tensor)) {
      return absl::NotFoundError(
          absl::StrCat("weight_map places tensor `", tensor, "` in ", file, ", which lacks it"));
    }
    files_.emplace(tensor, shards_.back().get());
  }
  return absl::OkStatus();
}

void FileCheckpoint::ComputeFingerprint() {
  Fingerprint fingerprint;
  fingerprint.Add(config_);
  for (const auto& [name, file] : files_) {
    const absl::StatusOr<TensorView> view = file->View(name);
    if (view.ok()) {
      fingerprint.Add(name, *view);
    }
  }
  fingerprint_ = fingerprint.Digest();
}

std::vector<std::string> FileCheckpoint::TensorNames() const {
  std::vector<std::string> names;
  names.reserve(files_.size());
  for (const auto& [name, file] : files_) {
    names.push_back(name);
  }
  return names;
}

absl::StatusOr<TensorView> FileCheckpoint::View(std::string_view name) const {
  const auto it = files_.find(name);
  if (it == files_.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor `", std::string(name), "` is missing in ", directory_));
  }
  return it->second->View(name);
}

absl::Status FileCheckpoint::ReadPart(std::string_view name,
                                      std::span<const int64_t> shape,
                                      kernels::DType dtype,
                                      int64_t first,
                                      std::span<std::byte> target) const {
  BATON_ASSIGN_OR_RETURN(TensorView view, View(name));
  if (!std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end())) {
    return absl::InvalidArgumentError(absl::StrCat("tensor `",
                                                   std::string(name),
                                                   "` in ",
                                                   directory_,
                                                   " has shape [",
                                                   absl::StrJoin(view.shape, ", "),
                                                   "], config.json asks for [",
                                                   absl::StrJoin(shape, ", "),
                                                   "]"));
  }
  const auto count = static_cast<int64_t>(target.size() / kernels::DTypeBytes(dtype));
  const int64_t elements = view.num_elements();
  if (first < 0 || first > elements || count > elements - first) {
    return absl::InvalidArgumentError(absl::StrCat("tensor `",
                                                   std::string(name),
                                                   "` has ",
                                                   elements,
                                                   " elements; ",
                                                   count,
                                                   " from ",
                                                   first,
                                                   " on were asked for"));
  }
  const size_t stored_bytes = kernels::DTypeBytes(view.dtype);
  view.bytes = view.bytes.subspan(static_cast<size_t>(first) * stored_bytes,
                                  static_cast<size_t>(count) * stored_bytes);
  return WithContext(ConvertTensor(view, dtype, target),
                     absl::StrCat("tensor `", std::string(name), "`"));
}

absl::StatusOr<ModelConfig> ReadConfig(const std::string& directory) {
  BATON_ASSIGN_OR_RETURN(const std::string config_text,
                         ReadFile(directory + "/config.json", kMaxConfigBytes));
  absl::StatusOr<std::string> generation_text =
      ReadFile(directory + "/generation_config.json", kMaxConfigBytes);
  if (!generation_text.ok() && !absl::IsNotFound(generation_text.status())) {
    return generation_text.status();
  }
  absl::StatusOr<ModelConfig> config =
      ParseModelConfig(config_text, generation_text.ok() ? *generation_text : std::string());
  if (!config.ok()) {
    return WithContext(config.status(), directory);
  }
  for (const std::string& warning : config->warnings) {
    spdlog::warn("{}: {}", directory, warning);
  }
  return config;
}

}  // namespace

absl::StatusOr<kernels::Buffer> Checkpoint::Read(std::string_view name,
                                                 std::span<const int64_t> shape,
                                                 kernels::DType dtype) const {
  BATON_RETURN_IF_ERROR(ReadPart(name, shape, dtype, 0, {}));
  const TensorView whole = {.dtype = dtype, .shape = {shape.begin(), shape.end()}, .bytes = {}};
  kernels::Buffer buffer(static_cast<size_t>(whole.num_elements()) * kernels::DTypeBytes(dtype));
  BATON_RETURN_IF_ERROR(ReadPart(name, shape, dtype, 0, buffer.bytes()));
  return buffer;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                             const CheckpointOptions& options) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(directory));
  if (options.random_weights_seed.has_value()) {
    return MakeRandomCheckpoint(directory, std::move(config), *options.random_weights_seed);
  }
  auto checkpoint = std::make_unique<FileCheckpoint>(directory, std::move(config));
  BATON_RETURN_IF_ERROR(checkpoint->OpenWeights());
  return checkpoint;
}

}  // namespace baton::checkpoint
