// A checkpoint without weight files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/checkpoint/checkpoint.h"

namespace baton::checkpoint {

// Every tensor of any name and shape, as FillRandomTensor makes it, rounded to the dtype that the
// configuration publishes (bf16 for the 16-bit types), so that --compute fp32 and bf16 see the same
// weights. Thread-safe.
std::unique_ptr<Checkpoint> MakeRandomCheckpoint(std::string directory,
                                                 ModelConfig config,
                                                 uint64_t seed);

}  // namespace baton::checkpoint
