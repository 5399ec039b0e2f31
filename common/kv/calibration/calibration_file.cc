#include "common/kv/calibration/calibration_file.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/kv/calibration/json_object.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"

namespace baton::kv {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxCount = int64_t{1} << 40;
// A layer's share of the budget; the mean of all may be off by rounding when it was written.
constexpr double kMaxWeight = 64.0;
constexpr double kMeanTolerance = 1e-3;

// What stands in front of a family with a hidden wire form.
constexpr std::array<std::pair<const char*, HiddenWire>, 2> kWirePrefixes = {{
    {"hidden+", HiddenWire::kBF16},
    {"hidden8+", HiddenWire::kFp8},
}};

// The format that member `name` of `object` asks for, with every key that it leaves out at the
// grammar's default.
absl::StatusOr<KvFormatPolicy> ReadPolicy(const JsonObject& object, std::string_view name) {
  BATON_ASSIGN_OR_RETURN(const std::string text, object.String(name));
  const absl::StatusOr<KvPolicy> policy = ParseKvPolicy(text);
  if (!policy.ok()) {
    return object.Invalid(name, absl::StrCat(": ", policy.status().message()));
  }
  if (policy->format() == nullptr) {
    return object.Invalid(name, "must be a format that workers serve, no choice and no baseline");
  }
  return *policy->format();
}

absl::StatusOr<CalibratedModel> ReadModel(const Json& value) {
  BATON_ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::Open(value, "model", {"fingerprint", "kv_layers"}));
  BATON_ASSIGN_OR_RETURN(const std::string text, object.String("fingerprint"));
  CalibratedModel model;
  if (text.size() != 16 || !absl::SimpleHexAtoi(text, &model.fingerprint) ||
      absl::StrCat(absl::Hex(model.fingerprint, absl::kZeroPad16)) != text) {
    return object.Invalid("fingerprint", "must be 16 lower case hexadecimal digits");
  }
  BATON_ASSIGN_OR_RETURN(const int64_t layers, object.Int("kv_layers", 1, kMaxLayers));
  model.layers = static_cast<int32_t>(layers);
  return model;
}

absl::StatusOr<std::vector<KvFloor>> ReadFloors(const JsonObject& family, size_t layers) {
  BATON_ASSIGN_OR_RETURN(const Json* list, family.List("layer_floor", layers));
  std::vector<KvFloor> floors;
  for (const Json& element : *list) {
    std::optional<KvFloor> floor;
    for (const KvFloor candidate : {KvFloor::kNone, KvFloor::kLow, KvFloor::kHigh}) {
      if (element.is_string() && element.get<std::string>() == KvFloorName(candidate)) {
        floor = candidate;
      }
    }
    if (!floor.has_value()) {
      return family.Invalid(
          "layer_floor",
          absl::StrCat("element ", floors.size(), " must be \"none\", \"low\" or \"high\""));
    }
    floors.push_back(*floor);
  }
  return floors;
}

absl::StatusOr<std::vector<float>> ReadBudgets(const JsonObject& family, size_t layers) {
  BATON_ASSIGN_OR_RETURN(const Json* list, family.List("layer_budget", layers));
  std::vector<float> weights;
  double sum = 0.0;
  for (const Json& element : *list) {
    const double weight = element.is_number() ? element.get<double>() : -1.0;
    if (!(weight >= 0.0 && weight <= kMaxWeight)) {
      return family.Invalid(
          "layer_budget",
          absl::StrCat("element ", weights.size(), " must be a number in 0..", kMaxWeight));
    }
    weights.push_back(static_cast<float>(weight));
    sum += weight;
  }
  const double mean = sum / static_cast<double>(layers);
  if (std::fabs(mean - 1.0) > kMeanTolerance) {
    return family.Invalid("layer_budget", absl::StrCat("has mean ", mean, "; it must be 1"));
  }
  return weights;
}

// Opens a family and reads its policy, which has to be of the format and wire form that the family
// is named after.
template <typename Params>
absl::StatusOr<JsonObject> ReadFamily(const JsonObject& families,
                                      const std::string& name,
                                      std::initializer_list<std::string_view> members,
                                      HiddenWire hidden,
                                      Params& params) {
  BATON_ASSIGN_OR_RETURN(const Json* value, families.Get(name));
  BATON_ASSIGN_OR_RETURN(JsonObject family,
                         JsonObject::Open(*value, families.PathOf(name), members));
  BATON_ASSIGN_OR_RETURN(const KvFormatPolicy policy, ReadPolicy(family, "policy"));
  const auto* read = std::get_if<Params>(&policy.resident);
  if (read == nullptr || policy.hidden != hidden) {
    return family.Invalid("policy", absl::StrCat("must be one of ", name));
  }
  params = *read;
  return family;
}

absl::Status ReadPlainFamilies(const JsonObject& families,
                               size_t layers,
                               KvCalibration& calibration) {
  constexpr HiddenWire kPlain = HiddenWire::kNone;
  KvPolicyDefaults::Family& defaults = calibration.defaults.of(kPlain);
  if (families.Has("diffkv")) {
    BATON_ASSIGN_OR_RETURN(
        const JsonObject family,
        ReadFamily(families, "diffkv", {"policy", "layer_floor"}, kPlain, defaults.diffkv));
    if (family.Has("layer_floor")) {
      BATON_ASSIGN_OR_RETURN(calibration.diffkv_floor, ReadFloors(family, layers));
    }
  }
  if (families.Has("shadowkv")) {
    BATON_ASSIGN_OR_RETURN(
        const JsonObject family,
        ReadFamily(families, "shadowkv", {"policy", "layer_budget"}, kPlain, defaults.shadowkv));
    if (family.Has("layer_budget")) {
      BATON_ASSIGN_OR_RETURN(calibration.shadowkv_budget, ReadBudgets(family, layers));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFamilies(const Json& value, int32_t layers, KvCalibration& calibration) {
  BATON_ASSIGN_OR_RETURN(const JsonObject families,
                         JsonObject::Open(value,
                                          "families",
                                          {"diffkv",
                                           "shadowkv",
                                           "hidden+diffkv",
                                           "hidden+shadowkv",
                                           "hidden8+diffkv",
                                           "hidden8+shadowkv"}));
  BATON_RETURN_IF_ERROR(ReadPlainFamilies(families, static_cast<size_t>(layers), calibration));
  for (const auto& [prefix, hidden] : kWirePrefixes) {
    KvPolicyDefaults::Family& defaults = calibration.defaults.of(hidden);
    defaults = calibration.defaults.of(HiddenWire::kNone);
    if (const std::string name = absl::StrCat(prefix, "diffkv"); families.Has(name)) {
      BATON_RETURN_IF_ERROR(
          ReadFamily(families, name, {"policy"}, hidden, defaults.diffkv).status());
    }
    if (const std::string name = absl::StrCat(prefix, "shadowkv"); families.Has(name)) {
      BATON_RETURN_IF_ERROR(
          ReadFamily(families, name, {"policy"}, hidden, defaults.shadowkv).status());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KvCalibration::Tiers> ReadTiers(const Json& value) {
  BATON_ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::Open(value, "tiers", {"high", "balanced", "economy"}));
  KvCalibration::Tiers tiers;
  BATON_ASSIGN_OR_RETURN(tiers[0], ReadPolicy(object, "high"));
  BATON_ASSIGN_OR_RETURN(tiers[1], ReadPolicy(object, "balanced"));
  BATON_ASSIGN_OR_RETURN(tiers[2], ReadPolicy(object, "economy"));
  return tiers;
}

absl::StatusOr<KvChoice> ReadTier(const JsonObject& object, std::string_view member) {
  BATON_ASSIGN_OR_RETURN(const std::string text, object.String(member));
  const absl::StatusOr<KvPolicy> policy = ParseKvPolicy(text);
  if (!policy.ok() || !policy->choice().has_value() || *policy->choice() == KvChoice::kAuto) {
    return object.Invalid(member, "must be tier=exact|high|balanced|economy");
  }
  return *policy->choice();
}

absl::StatusOr<KvAutoRule> ReadAuto(const Json& value) {
  BATON_ASSIGN_OR_RETURN(
      const JsonObject object,
      JsonObject::Open(value, "auto", {"exact_below_tokens", "policy", "under_pressure"}));
  KvAutoRule rule;
  BATON_ASSIGN_OR_RETURN(rule.exact_below_tokens, object.Int("exact_below_tokens", 0, kMaxTokens));
  BATON_ASSIGN_OR_RETURN(rule.choice, ReadTier(object, "policy"));
  BATON_ASSIGN_OR_RETURN(rule.under_pressure, ReadTier(object, "under_pressure"));
  return rule;
}

absl::StatusOr<CalibrationPoint> ReadPoint(const Json& value, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::Open(value,
                                          path,
                                          {"kv",
                                           "cases",
                                           "correct",
                                           "lost",
                                           "gained",
                                           "bytes_per_token",
                                           "bytes_share",
                                           "wire_share",
                                           "attended_share"}));
  CalibrationPoint point;
  BATON_ASSIGN_OR_RETURN(point.kv, object.String("kv"));
  BATON_ASSIGN_OR_RETURN(point.cases, object.Int("cases", 0, kMaxCount));
  BATON_ASSIGN_OR_RETURN(point.correct, object.Int("correct", 0, point.cases));
  BATON_ASSIGN_OR_RETURN(point.lost, object.Int("lost", 0, point.cases));
  BATON_ASSIGN_OR_RETURN(point.gained, object.Int("gained", 0, point.cases));
  constexpr double kAnyNumber = std::numeric_limits<double>::max();
  BATON_ASSIGN_OR_RETURN(point.bytes_per_token, object.Number("bytes_per_token", kAnyNumber));
  BATON_ASSIGN_OR_RETURN(point.bytes_share, object.Number("bytes_share", kAnyNumber));
  if (object.Has("wire_share")) {
    BATON_ASSIGN_OR_RETURN(point.wire_share, object.Number("wire_share", kAnyNumber));
  }
  if (object.Has("attended_share")) {
    BATON_ASSIGN_OR_RETURN(point.attended_share, object.Number("attended_share", kAnyNumber));
  }
  return point;
}

absl::StatusOr<std::vector<CalibrationPoint>> ReadCurve(const Json& value) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError("calibration: member `curve` must be a list");
  }
  std::vector<CalibrationPoint> curve;
  for (const Json& element : value) {
    BATON_ASSIGN_OR_RETURN(CalibrationPoint point,
                           ReadPoint(element, absl::StrCat("curve[", curve.size(), "]")));
    curve.push_back(std::move(point));
  }
  return curve;
}

absl::StatusOr<CalibrationRecord> ReadRecord(const Json& value) {
  BATON_ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::Open(value, "made", {"command", "rule", "compute", "cases"}));
  CalibrationRecord record;
  BATON_ASSIGN_OR_RETURN(record.command, object.String("command"));
  BATON_ASSIGN_OR_RETURN(record.rule, object.String("rule"));
  BATON_ASSIGN_OR_RETURN(record.compute, object.String("compute"));
  BATON_ASSIGN_OR_RETURN(record.cases, object.Int("cases", 0, kMaxCount));
  return record;
}

// Another version may have other members, so it is looked at before them.
absl::Status CheckVersion(const Json& value) {
  if (!value.is_object() || !value.contains("version") || !value["version"].is_number_unsigned()) {
    return absl::InvalidArgumentError(
        "calibration: member `version` is missing or no number; is this a calibration file?");
  }
  if (const auto version = value["version"].get<uint64_t>(); version != kCalibrationVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("calibration: version ",
                     version,
                     "; this build reads version ",
                     kCalibrationVersion,
                     ": make the file again with baton-lab calibrate"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CalibrationFile> ParseCalibration(std::string_view json) {
  if (json.size() > kMaxCalibrationBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "calibration: ", json.size(), " bytes; at most ", kMaxCalibrationBytes, " are read"));
  }
  BATON_ASSIGN_OR_RETURN(const Json value, ParseStrictJson(json));
  BATON_RETURN_IF_ERROR(CheckVersion(value));
  BATON_ASSIGN_OR_RETURN(
      const JsonObject top,
      JsonObject::Open(
          value, "", {"version", "model", "families", "tiers", "auto", "curve", "made"}));
  CalibrationFile file;
  BATON_ASSIGN_OR_RETURN(const Json* model, top.Get("model"));
  BATON_ASSIGN_OR_RETURN(file.model, ReadModel(*model));
  BATON_ASSIGN_OR_RETURN(const Json* families, top.Get("families"));
  BATON_RETURN_IF_ERROR(ReadFamilies(*families, file.model.layers, file.calibration));
  if (top.Has("tiers")) {
    BATON_ASSIGN_OR_RETURN(file.calibration.tiers, ReadTiers(value["tiers"]));
  }
  if (top.Has("auto")) {
    BATON_ASSIGN_OR_RETURN(file.calibration.automatic, ReadAuto(value["auto"]));
  }
  if (top.Has("curve")) {
    BATON_ASSIGN_OR_RETURN(file.curve, ReadCurve(value["curve"]));
  }
  if (top.Has("made")) {
    BATON_ASSIGN_OR_RETURN(file.made, ReadRecord(value["made"]));
  }
  return file;
}

absl::StatusOr<CalibrationFile> ParseCalibration(std::string_view json,
                                                 const CalibratedModel& model) {
  BATON_ASSIGN_OR_RETURN(CalibrationFile file, ParseCalibration(json));
  if (file.model != model) {
    return absl::FailedPreconditionError(
        absl::StrCat("calibration: made for a model with fingerprint ",
                     absl::Hex(file.model.fingerprint, absl::kZeroPad16),
                     " and ",
                     file.model.layers,
                     " KV layers; this model has ",
                     absl::Hex(model.fingerprint, absl::kZeroPad16),
                     " and ",
                     model.layers,
                     ": calibrate this model with baton-lab calibrate"));
  }
  return file;
}

}  // namespace baton::kv
