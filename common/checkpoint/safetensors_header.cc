#include "common/checkpoint/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/checkpoint/stored_dtype.h"

namespace baton::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kSizeBytes = 8;
constexpr size_t kMaxRank = 16;
constexpr const char* kMetadataKey = "__metadata__";

absl::Status Broken(const std::string& name, std::string_view problem) {
  return absl::DataLossError(absl::StrCat("tensor `", name, "` ", std::string(problem)));
}

// a * b, or nothing when it does not fit 63 bits.
std::optional<uint64_t> Multiply(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (b != 0 && a > kMax / b) {
    return std::nullopt;
  }
  return a * b;
}

absl::Status ReadShape(const json& value, SafetensorsEntry& entry) {
  if (!value.is_array() || value.size() > kMaxRank) {
    return Broken(entry.name, "needs `shape`, a list of at most 16 extents");
  }
  for (const json& extent : value) {
    if (!extent.is_number_unsigned() ||
        extent.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Broken(entry.name, "has an extent in `shape` that is not an integer >= 0");
    }
    entry.shape.push_back(static_cast<int64_t>(extent.get<uint64_t>()));
  }
  return absl::OkStatus();
}

absl::Status ReadOffsets(const json& value,
                         uint64_t data_begin,
                         uint64_t data_bytes,
                         SafetensorsEntry& entry) {
  if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() ||
      !value[1].is_number_unsigned()) {
    return Broken(entry.name, "needs `data_offsets`, two integers >= 0");
  }
  const uint64_t begin = value[0].get<uint64_t>();
  const uint64_t end = value[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return Broken(entry.name,
                  absl::StrCat("has data_offsets [",
                               begin,
                               ", ",
                               end,
                               ") but the file holds ",
                               data_bytes,
                               " data bytes; is the file truncated?"));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return absl::OkStatus();
}

absl::Status CheckSize(const SafetensorsEntry& entry) {
  const std::optional<uint64_t> bits_per_element = StoredDTypeBits(entry.dtype_name);
  if (!bits_per_element.has_value()) {
    return Broken(entry.name, absl::StrCat("has unknown dtype \"", entry.dtype_name, "\""));
  }
  std::optional<uint64_t> bits = bits_per_element;
  for (const int64_t extent : entry.shape) {
    bits = Multiply(*bits, static_cast<uint64_t>(extent));
    if (!bits.has_value()) {
      return Broken(entry.name, "has a shape whose size overflows");
    }
  }
  if (*bits % 8 != 0 || *bits / 8 != entry.end - entry.begin) {
    return Broken(entry.name,
                  absl::StrCat("has ",
                               entry.end - entry.begin,
                               " data bytes, but its shape and dtype ",
                               entry.dtype_name,
                               " need ",
                               *bits / 8));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsEntry> ReadEntry(const std::string& name,
                                           const json& value,
                                           uint64_t data_begin,
                                           uint64_t data_bytes) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!value.is_object()) {
    return Broken(name, "is not a JSON object");
  }
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string() || shape == value.end() ||
      offsets == value.end()) {
    return Broken(name, "needs the fields dtype, shape and data_offsets");
  }
  entry.dtype_name = dtype->get<std::string>();
  BATON_RETURN_IF_ERROR(ReadShape(*shape, entry));
  BATON_RETURN_IF_ERROR(ReadOffsets(*offsets, data_begin, data_bytes, entry));
  BATON_RETURN_IF_ERROR(CheckSize(entry));
  return entry;
}

// Parses the JSON text; a name that stands twice is refused, which a plain parse would hide.
absl::StatusOr<json> ParseHeaderText(std::string_view text) {
  std::unordered_set<std::string> names;
  std::string repeated;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key && repeated.empty() &&
        !names.insert(parsed.get_ref<const std::string&>()).second) {
      repeated = parsed.get_ref<const std::string&>();
    }
    return true;
  };
  json header = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (!header.is_object()) {
    return absl::DataLossError("the header is not a JSON object");
  }
  if (!repeated.empty()) {
    return Broken(repeated, "stands twice in the header");
  }
  return header;
}

absl::Status CheckCoverage(const std::vector<SafetensorsEntry>& entries,
                           uint64_t data_begin,
                           uint64_t file_bytes) {
  uint64_t expected = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != expected) {
      return Broken(
          entry.name,
          entry.begin < expected ? "overlaps the tensor before it" : "leaves a hole before it");
    }
    expected = entry.end;
  }
  if (expected != file_bytes) {
    return absl::DataLossError(
        absl::StrCat("the tensors end at byte ", expected, " of ", file_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::span<const std::byte> file) {
  if (file.size() < kSizeBytes) {
    return absl::DataLossError(absl::StrCat("is ", file.size(), " bytes, no safetensors file"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kSizeBytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::DataLossError(absl::StrCat(
        "has a header of ", header_bytes, " bytes; the limit is ", kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > file.size() - kSizeBytes) {
    return absl::DataLossError(absl::StrCat("has a header of ",
                                            header_bytes,
                                            " bytes but only ",
                                            file.size(),
                                            " bytes in all; is it truncated?"));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kSizeBytes,
                              static_cast<size_t>(header_bytes));
  BATON_ASSIGN_OR_RETURN(const json header, ParseHeaderText(text));
  const uint64_t data_begin = kSizeBytes + header_bytes;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadataKey) {
      BATON_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                             ReadEntry(name, value, data_begin, file.size() - data_begin));
      entries.push_back(std::move(entry));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  BATON_RETURN_IF_ERROR(CheckCoverage(entries, data_begin, file.size()));
  return entries;
}

}  // namespace baton::checkpoint
