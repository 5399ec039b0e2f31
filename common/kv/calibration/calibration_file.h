// The file that a model's KV calibration is kept in: JSON, versioned, bound to one model.
//
//   {
//     "version": 1,
//     "model": {"fingerprint": "0123456789abcdef", "kv_layers": 12},
//     "families": {                          what keys that a policy leaves out are
//       "diffkv": {"policy": "diffkv:...", "layer_floor": ["none", "low", "high", ...]},
//       "shadowkv": {"policy": "shadowkv:...", "layer_budget": [1.5, 0.5, ...]},
//       "hidden8+diffkv": {"policy": "hidden8+diffkv:..."}
//     },
//     "tiers": {"high": "diffkv:...", "balanced": "diffkv:...", "economy": "diffkv:..."},
//     "auto": {"exact_below_tokens": 1024, "policy": "tier=balanced",
//              "under_pressure": "tier=economy"},
//     "curve": [{"kv": "dense", "cases": 420, "correct": 390, "lost": 0, "gained": 0,
//                "bytes_per_token": 6144.5, "bytes_share": 1.0, "wire_share": 1.0,
//                "attended_share": 1.0}, ...],
//     "made": {"command": "baton-lab calibrate ...", "rule": "...", "compute": "bf16", "cases":
//     420}
//   }
//
// Every member but `version`, `model` and `families` may be missing, and so may every family and
// both lists. Nothing else may be there. A family `hidden...+F` that is missing has the keys of F.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/kv_calibration.h"

namespace baton::kv {

inline constexpr int32_t kCalibrationVersion = 1;
// Longest text that ParseCalibration looks at.
inline constexpr size_t kMaxCalibrationBytes = size_t{4} << 20;

// What a calibration is bound to.
struct CalibratedModel {
  uint64_t fingerprint = 0;  // of the checkpoint, as `baton-lab inspect` prints it
  int32_t layers = 0;        // stored KV layers

  bool operator==(const CalibratedModel&) const = default;
};

// What one policy came to on the calibration's cases.
struct CalibrationPoint {
  std::string kv = {};  // canonical, with every key
  int64_t cases = 0;
  int64_t correct = 0;
  int64_t lost = 0;                           // cases that dense KV answers and this does not
  int64_t gained = 0;                         // the reverse
  double bytes_per_token = 0.0;               // resident, per prompt token
  double bytes_share = 0.0;                   // of bf16 keys and values
  std::optional<double> wire_share = {};      // the same of the bytes sent; unset as below
  std::optional<double> attended_share = {};  // of the prompt, per step; unset where nobody counted

  bool operator==(const CalibrationPoint&) const = default;
};

// How the calibration came about.
struct CalibrationRecord {
  std::string command = {};
  std::string rule = {};     // by which parameters were chosen, in words
  std::string compute = {};  // dtype of weights and KV
  int64_t cases = 0;

  bool operator==(const CalibrationRecord&) const = default;
};

struct CalibrationFile {
  CalibratedModel model = {};
  KvCalibration calibration = {};
  std::vector<CalibrationPoint> curve = {};
  CalibrationRecord made = {};

  bool operator==(const CalibrationFile&) const = default;
};

// kInvalidArgument, "calibration: ...", names the member that is wrong and what is allowed:
// malformed text, a member that is unknown, missing, given twice or of the wrong type, a number
// that is not finite or out of range, a list of the wrong length. kFailedPrecondition for another
// version.
absl::StatusOr<CalibrationFile> ParseCalibration(std::string_view json);

// The same, and kFailedPrecondition when it was made for another model than `model`.
absl::StatusOr<CalibrationFile> ParseCalibration(std::string_view json,
                                                 const CalibratedModel& model);

// The text that ParseCalibration reads back to an equal file; it ends with a line break.
std::string CalibrationToJson(const CalibrationFile& file);

}  // namespace baton::kv
