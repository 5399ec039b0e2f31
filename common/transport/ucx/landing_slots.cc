#include "common/transport/ucx/landing_slots.h"

#include <sys/mman.h>

#include <memory>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {

LandingSlots::LandingSlots(uint32_t slot_bytes, uint16_t slots)
    : slot_bytes_(slot_bytes), generations_(slots) {
  for (uint16_t slot = slots; slot > 0; --slot) {
    free_.push_back(static_cast<uint16_t>(slot - 1));
  }
}

absl::StatusOr<std::unique_ptr<LandingSlots>> LandingSlots::Map(ucp_context_h context,
                                                                uint32_t slot_bytes,
                                                                uint16_t slots) {
  std::unique_ptr<LandingSlots> made(new LandingSlots(slot_bytes, slots));
  const size_t bytes = size_t{slot_bytes} * slots;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes for landing slots"));
  }
  made->memory_ = {static_cast<std::byte*>(memory), bytes};
  made->context_ = context;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory;
  params.length = bytes;
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_mem_map(context, &params, &made->mapping_), "mapping landing slots"));
  void* rkey = nullptr;
  size_t rkey_bytes = 0;
  BATON_RETURN_IF_ERROR(FromUcs(ucp_rkey_pack(context, made->mapping_, &rkey, &rkey_bytes),
                                "packing the key of landing slots"));
  made->rkey_.assign(static_cast<const char*>(rkey), rkey_bytes);
  ucp_rkey_buffer_release(rkey);
  if (rkey_bytes > kMaxRkeyBytes) {
    return absl::InternalError(absl::StrCat("UCX packed a key of ", rkey_bytes, " bytes"));
  }
  return made;
}

std::unique_ptr<LandingSlots> LandingSlots::WithoutMemory(uint32_t slot_bytes, uint16_t slots) {
  return std::unique_ptr<LandingSlots>(new LandingSlots(slot_bytes, slots));
}

LandingSlots::~LandingSlots() {
  if (mapping_ != nullptr) {
    ucp_mem_unmap(context_, mapping_);
  }
  if (!memory_.empty()) {
    munmap(memory_.data(), memory_.size());
  }
}

std::optional<LandingSlots::Granted> LandingSlots::Take() {
  if (free_.empty()) {
    return std::nullopt;
  }
  const uint16_t slot = free_.back();
  free_.pop_back();
  return Granted{.slot = slot, .generation = ++generations_[slot]};
}

void LandingSlots::Return(const Granted& granted) { free_.push_back(granted.slot); }

std::span<const std::byte> LandingSlots::bytes(uint16_t slot) const {
  return memory_.subspan(size_t{slot} * slot_bytes_, slot_bytes_);
}

}  // namespace baton::transport::ucx
