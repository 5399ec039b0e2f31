// Decode steps of as many sequences as the device holds, by format of keys and values.
#pragma once

#include <cstdint>
#include <string_view>

#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

// Sequences of the largest step: what the model's activations and logits have to have room for.
inline constexpr int32_t kMostCapacitySequences = 512;

// One new token of every sequence, until the most likely ones are on the host, over a pool that is
// filled on the device by a seeded synthetic encoder; every sequence has memory of its own in every
// layer. The pool is 0.92 of the device's memory less what is in use before it is made: weights,
// activations, workspace. CheckFormats tells beforehand whether steps over a format are right. One
// row a context, format and variant (model_capacity_dense.h, ..._diffkv.h, ..._shadowkv.h):
//   bench, model, format        "capacity"
//   tokens                      of a sequence, once all steps are done
//   kv_bytes                    of a sequence, with what its steps need beside the pool
//   host_kv_bytes               what it has of the host's memory, if it has something there
//   sequences, bound            how many there are, by "memory" of the device, "host memory" (0.85
//                               of what is available) or "rows" (kMostCapacitySequences)
//   scored_every                `diffkv`: of so many steps one scores a sequence's tokens
//   hits_forced                 `shadowkv`: share of a step's chunks that are in the cache already;
//                               chunks are selected nevertheless
//   hits                        the same as counted
//   ms                          of a step; median
//   us_per_sequence_layer       of a step, by sequences and layers
//   tokens_per_s
//   bytes                       that a step reads at least: weights, keys and values
//   share_of_4250               of 4250 GB/s
//   sequences_to_dense, tokens_per_s_to_dense
//                               over those of `dense` with this context, if it was measured
// and of one that could not be measured `failed` with the reason instead of what is not known.
// Quick: 32K only. `format`: that one alone, if not empty; "shadowkv_host": those of `shadowkv`
// with values in the host's memory. False if one failed. Only on a device.
bool MeasureCapacity(const LoadedModel& loaded, bool quick, std::string_view format);

}  // namespace baton::model
