#include "services/lab/calibrate/curve_svg.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "services/lab/plot/quality_svg.h"

namespace baton::lab {
namespace {

// The defaults of the families, as they are spelled in the curve.
std::vector<std::string> Chosen(const kv::KvCalibration& calibration) {
  std::vector<std::string> names;
  for (const auto hidden : {kv::HiddenWire::kNone, kv::HiddenWire::kBF16, kv::HiddenWire::kFp8}) {
    const auto& family = calibration.defaults.of(hidden);
    for (const kv::KvResidentPolicy& policy :
         {kv::KvResidentPolicy(family.diffkv), kv::KvResidentPolicy(family.shadowkv)}) {
      names.push_back(kv::KvFormatPolicy{.hidden = hidden, .resident = policy}.CanonicalString(
          kv::KvSpelling::kExplicit));
    }
  }
  return names;
}

}  // namespace

std::string CurveToSvg(const kv::CalibrationFile& file) {
  const std::vector<std::string> chosen = Chosen(file.calibration);
  std::vector<PlotPoint> points;
  points.reserve(file.curve.size());
  for (const kv::CalibrationPoint& point : file.curve) {
    points.push_back({.kv = point.kv,
                      .cases = point.cases,
                      .correct = point.correct,
                      .net_loss = point.lost - point.gained,
                      .bytes_share = point.bytes_share,
                      .chosen = std::ranges::find(chosen, point.kv) != chosen.end()});
  }
  return QualitySvg(absl::StrCat("KV calibration: ", file.made.cases, " cases"), points);
}

}  // namespace baton::lab
