// What stays exact of a prompt: its static chunks and its local window.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Chooses every head's static chunks (ShadowKV Algorithm 1: the sinks, then the lowest scores, ties
// to the lower id; ids ascend) and copies their and the local window's keys and values.
// chunk_scores, [kv_heads][chunks], are the smallest cosine of every chunk.
void WriteExact(const ShadowKvEncodeParams& params, const float* chunk_scores, cudaStream_t stream);

}  // namespace baton::kernels::cuda::shadowkv
