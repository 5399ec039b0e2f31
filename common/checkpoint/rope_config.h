// RoPE fields of config.json.
#pragma once

#include "absl/status/status.h"

#include "common/checkpoint/config_fields.h"
#include "common/checkpoint/model_config.h"

namespace baton::checkpoint {

// Reads `rope_theta` and `rope_scaling` (long-standing spelling, rope type under `rope_type` or
// `type`) or `rope_parameters` (transformers 5, theta inside) into `config`; swiftkv.md 3.3.
// kUnimplemented names a rope type other than "default" and "llama3".
absl::Status ReadRope(const ConfigFields& fields, ModelConfig& config);

}  // namespace baton::checkpoint
