// The memory of a grant as tests write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/pieces.h"
#include "common/engine/request.h"

namespace baton::engine {

// Where the page that begins at byte `offset` of the window lies; null outside.
inline std::byte* GrantedAt(const ReservationGrant& grant, int64_t offset) {
  for (const std::span<std::byte> piece : grant.memory) {
    if (offset < static_cast<int64_t>(piece.size())) {
      return piece.data() + offset;
    }
    offset -= static_cast<int64_t>(piece.size());
  }
  return nullptr;
}

// The same for a page of a layer, or of the hidden states behind the layers.
inline std::byte* GrantedPage(const ReservationGrant& grant,
                              int32_t layer,
                              int32_t page,
                              size_t page_bytes) {
  return GrantedAt(grant,
                   int64_t{layer} * grant.pages_per_layer * grant.page_bytes +
                       int64_t{page} * static_cast<int64_t>(page_bytes));
}

// Whether hidden states, pages of `page_bytes`, are the section `layer` of the window.
inline bool IsHidden(const ReservationGrant& grant, int32_t layer, size_t page_bytes) {
  return grant.hidden_pages > 0 &&
         int64_t{layer} * grant.pages_per_layer * grant.page_bytes +
                 int64_t{grant.hidden_pages} * static_cast<int64_t>(page_bytes) ==
             static_cast<int64_t>(BytesOf(grant.memory));
}

}  // namespace baton::engine
