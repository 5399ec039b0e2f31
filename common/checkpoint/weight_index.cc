#include "common/checkpoint/weight_index.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"

namespace baton::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxIndexBytes = 256 << 20;

absl::Status CheckFileName(const std::string& name) {
  const std::filesystem::path path(name);
  bool inside = !name.empty() && name.find('\0') == std::string::npos && path.is_relative();
  for (const std::filesystem::path& part : path) {
    inside = inside && part != "..";
  }
  if (!inside) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight_map names the file \"", name, "\", which is outside the model directory"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightIndex> ParseWeightIndex(std::string_view text) {
  if (text.size() > kMaxIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat("exceeds ", kMaxIndexBytes, " bytes"));
  }
  const json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError("is not a JSON object");
  }
  const auto weight_map = parsed.find("weight_map");
  if (weight_map == parsed.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError("needs `weight_map`, an object of tensor name to file name");
  }
  WeightIndex index;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map maps `", tensor, "` to something that is not a file name"));
    }
    const std::string& name = file.get_ref<const std::string&>();
    BATON_RETURN_IF_ERROR(CheckFileName(name));
    index[name].push_back(tensor);
    if (index.size() > kMaxFiles) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map names more than ", kMaxFiles, " files"));
    }
  }
  return index;
}

}  // namespace baton::checkpoint
