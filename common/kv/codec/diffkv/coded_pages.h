// The pages of a prompt's layers, told while later layers are still being coded.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"

namespace baton::kv {

// On a device, layers take pages from one lease in turn: a layer has those behind the layer's
// before it, as many as its token counts say, and these the device alone knows until they are read.
// One thread at a time.
class DiffKvCodedPages {
 public:
  // `codec` is borrowed. `lease_ids`: what the first layer takes pages from.
  DiffKvCodedPages(DiffKvCodec& codec, std::vector<PageId> lease_ids)
      : codec_(codec), lease_ids_(std::move(lease_ids)) {}

  // Of the layer that was coded behind the one of the last call, once that is done. `token_counts`,
  // [kv_heads][tiers], is the device's.
  absl::StatusOr<EncodedLayer> Next(const int32_t* token_counts);

 private:
  DiffKvCodec& codec_;
  const std::vector<PageId> lease_ids_;
  size_t taken_ = 0;
};

}  // namespace baton::kv
