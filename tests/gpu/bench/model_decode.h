// Decode steps, from token ids on the host to the next ones on the host.
#pragma once

#include <cstdint>

#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

// Tokens of all sequences of the largest step: the pool needs room for them.
inline constexpr int64_t kMostDecodeTokens = int64_t{64} * 8192;

// One new token of every sequence, over pages that hold anything but zeros. One row a shape:
//   bench, model               "decode"
//   sequences, tokens          of each, the new one included
//   ms                         of a step until its most likely tokens are on the host; median
//   device_ms                  of a step of several that the device is given one behind another
//                              without logits: no head, no copy back, no waiting for either
//   tokens_per_s
//   bytes                      of weights, keys and values (ModelCost)
//   gb_per_s, share_of_4250    10^9 of them a second of `ms`; of 4250 of these
// and of a shape that could not be measured `failed` with the reason instead of what follows
// tokens. False if one failed. Only on a device.
bool MeasureDecode(const ModelSubject& subject, bool quick);

}  // namespace baton::model
