// The calibration file as text.
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

using Json = nlohmann::ordered_json;

Json PolicyOf(HiddenWire hidden, const KvResidentPolicy& resident) {
  return KvFormatPolicy{.hidden = hidden, .resident = resident}.CanonicalString(
      KvSpelling::kExplicit);
}

// Families with a hidden wire form are written where they differ from those without.
Json FamiliesOf(const KvCalibration& calibration) {
  const KvPolicyDefaults::Family& plain = calibration.defaults.of(HiddenWire::kNone);
  Json families;
  families["diffkv"]["policy"] = PolicyOf(HiddenWire::kNone, plain.diffkv);
  for (const KvFloor floor : calibration.diffkv_floor) {
    families["diffkv"]["layer_floor"].push_back(std::string(KvFloorName(floor)));
  }
  families["shadowkv"]["policy"] = PolicyOf(HiddenWire::kNone, plain.shadowkv);
  for (const float weight : calibration.shadowkv_budget) {
    families["shadowkv"]["layer_budget"].push_back(weight);
  }
  constexpr std::array<std::pair<const char*, HiddenWire>, 2> kPrefixes = {
      {{"hidden+", HiddenWire::kBF16}, {"hidden8+", HiddenWire::kFp8}}};
  for (const auto& [prefix, hidden] : kPrefixes) {
    const KvPolicyDefaults::Family& family = calibration.defaults.of(hidden);
    if (family.diffkv != plain.diffkv) {
      families[absl::StrCat(prefix, "diffkv")]["policy"] = PolicyOf(hidden, family.diffkv);
    }
    if (family.shadowkv != plain.shadowkv) {
      families[absl::StrCat(prefix, "shadowkv")]["policy"] = PolicyOf(hidden, family.shadowkv);
    }
  }
  return families;
}

Json AutoOf(const KvAutoRule& rule) {
  return {{"exact_below_tokens", rule.exact_below_tokens},
          {"policy", KvPolicy{rule.choice}.CanonicalString()},
          {"under_pressure", KvPolicy{rule.under_pressure}.CanonicalString()}};
}

Json PointOf(const CalibrationPoint& point) {
  Json value = {{"kv", point.kv},
                {"cases", point.cases},
                {"correct", point.correct},
                {"lost", point.lost},
                {"gained", point.gained},
                {"bytes_per_token", point.bytes_per_token},
                {"bytes_share", point.bytes_share}};
  if (point.wire_share.has_value()) {
    value["wire_share"] = *point.wire_share;
  }
  if (point.attended_share.has_value()) {
    value["attended_share"] = *point.attended_share;
  }
  return value;
}

}  // namespace

std::string CalibrationToJson(const CalibrationFile& file) {
  Json value;
  value["version"] = kCalibrationVersion;
  value["model"] = {
      {"fingerprint", absl::StrCat(absl::Hex(file.model.fingerprint, absl::kZeroPad16))},
      {"kv_layers", file.model.layers}};
  value["families"] = FamiliesOf(file.calibration);
  if (file.calibration.tiers.has_value()) {
    constexpr std::array<const char*, 3> kNames = {"high", "balanced", "economy"};
    for (size_t i = 0; i < kNames.size(); ++i) {
      value["tiers"][kNames[i]] =
          (*file.calibration.tiers)[i].CanonicalString(KvSpelling::kExplicit);
    }
  }
  value["auto"] = AutoOf(file.calibration.automatic);
  value["curve"] = Json::array();
  for (const CalibrationPoint& point : file.curve) {
    value["curve"].push_back(PointOf(point));
  }
  value["made"] = {{"command", file.made.command},
                   {"rule", file.made.rule},
                   {"compute", file.made.compute},
                   {"cases", file.made.cases}};
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace baton::kv
