// Scratch of the ops over joint coefficients (shadowkv_joint.cc).
#pragma once

#include "kernels/core/carver.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cpu {

// One thread's.
struct JointCodingScratch {
  CodingScratch coding;
  float* sums = nullptr;  // [64, rank]: coefficients over all layers
};
JointCodingScratch CarveJointCoding(const ShadowKvConfig& config, Carver& carver);

}  // namespace baton::kernels::cpu
