// One call of the ops that read sequences in format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// What has to be known of a call's sequences beforehand: on a device ops see them too late.
struct ShadowKvCallSizes {
  // The bound on exact tokens is a multiple: it stays for that many decode steps, and the ops'
  // calls with it (kernels/core/op_graphs.h).
  static constexpr int64_t kBoundTokens = 64;

  kernels::ShadowKvBounds bounds = {.max_chunks = 1, .cached = true};
  int64_t chunk_ids_stride = 0;  // of a KV head
  int64_t cluster_stride = 0;    // of a query head

  // One more sequence, whose newest token is at `position`.
  void Add(const kernels::ShadowKvPromptLayout& layout, int32_t position, bool cached);
  // Elements of the arrays that selection writes for so many sequences.
  int64_t chunk_ids(int64_t sequences) const {
    return sequences * bounds.kv_heads * chunk_ids_stride;
  }
  int64_t cluster_logits(int64_t sequences, int64_t heads) const {
    return sequences * heads * cluster_stride;
  }
};

struct ShadowKvCall {
  const kernels::ShadowKvSequence* sequences = nullptr;  // where ops read them
  int64_t count = 0;
  ShadowKvCallSizes sizes;
  size_t workspace_bytes = 0;  // that a back end on the host needs
};

// What selection leaves to attention: [count][kv_heads][chunk_ids_stride] and
// [count][heads][cluster_stride].
struct ShadowKvSelection {
  int32_t* chunk_ids = nullptr;
  float* cluster_logits = nullptr;
};

}  // namespace baton::kv
