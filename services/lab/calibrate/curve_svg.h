// A calibration's curve as a picture.
#pragma once

#include <string>
#include <vector>

#include "common/kv/calibration/calibration_file.h"

namespace baton::lab {

// Correct answers in % over resident bytes in % of bf16 keys and values: a point for each policy of
// the file's curve, one colour and shape for each format, titles that name policy and numbers, the
// default of each family ringed and named. Axes, ticks, labels and a legend; SVG 1.1, one file
// without references. An empty curve gives empty axes.
std::string CurveToSvg(const kv::CalibrationFile& file);

}  // namespace baton::lab
