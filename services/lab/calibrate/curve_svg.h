// A calibration's curve as a picture.
#pragma once

#include <string>

#include "common/kv/calibration/calibration_file.h"

namespace baton::lab {

// QualitySvg of every policy of the file's curve, the default of each family chosen.
std::string CurveToSvg(const kv::CalibrationFile& file);

}  // namespace baton::lab
