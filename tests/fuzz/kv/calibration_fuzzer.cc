// Any bytes as a calibration file. What is read is sound for its number of layers and is written to
// a text that is read back as the same; what is not is refused with a short, printable message.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/strings/string_view.h"

#include "common/base/check.h"
#include "common/kv/calibration/calibration_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using baton::kv::CalibrationToJson;
  using baton::kv::ParseCalibration;
  const auto file = ParseCalibration(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) {
    const absl::string_view message = file.status().message();
    BATON_CHECK(message.size() < 2048);
    BATON_CHECK(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; }));
    return 0;
  }
  const auto layers = static_cast<size_t>(file->model.layers);
  const baton::kv::KvCalibration& calibration = file->calibration;
  BATON_CHECK(calibration.diffkv_floor.empty() || calibration.diffkv_floor.size() == layers);
  BATON_CHECK(calibration.shadowkv_budget.empty() || calibration.shadowkv_budget.size() == layers);
  BATON_CHECK(std::ranges::all_of(calibration.shadowkv_budget, [](float weight) {
    return std::isfinite(weight) && weight >= 0;
  }));
  const auto again = ParseCalibration(CalibrationToJson(*file), file->model);
  BATON_CHECK(again.ok() && *again == *file);
  return 0;
}
