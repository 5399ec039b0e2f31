// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::checkpoint {

// File name (relative to the model directory) -> the tensors that are to be read from it. A shard
// may hold more tensors than these; they are not the model's.
using WeightIndex = std::map<std::string, std::vector<std::string>>;

// Parses the index text. File names that are absolute or climb out of the directory ("..") are
// refused: kInvalidArgument names them. At most 4096 files.
absl::StatusOr<WeightIndex> ParseWeightIndex(std::string_view text);

}  // namespace baton::checkpoint
