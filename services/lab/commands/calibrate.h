// baton-lab calibrate: the KV parameters of one model.
#pragma once

#include "absl/status/status.h"

namespace baton::lab {

// Sweeps KV policies over --cases and writes --out, a picture beside it (.svg), and the rows of
// every case and policy, which --resume goes on from.
absl::Status RunCalibrate();

}  // namespace baton::lab
