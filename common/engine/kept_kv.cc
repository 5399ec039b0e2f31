#include "common/engine/kept_kv.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::engine {

bool KeptKv::IsPrefixOf(const std::vector<int32_t>& prompt) const {
  return token_ids.size() < prompt.size() &&
         std::equal(token_ids.begin(), token_ids.end(), prompt.begin());
}

int64_t KeptKv::EncodedBytes() const {
  return sequence.encoded == nullptr ? 0 : sequence.encoded->ReservedBytes();
}

std::optional<KeptKv> KeptKvStore::Put(KeptKv kept) {
  std::optional<KeptKv> before = Take(kept.session_id);
  pages_held_ += kept.pages_held;
  encoded_bytes_ += kept.EncodedBytes();
  order_.push_back(std::move(kept));
  by_session_.emplace(order_.back().session_id, std::prev(order_.end()));
  return before;
}

std::optional<KeptKv> KeptKvStore::Take(std::string_view session_id) {
  const auto entry = by_session_.find(absl::string_view(session_id.data(), session_id.size()));
  return entry == by_session_.end() ? std::nullopt : std::optional(Remove(entry->second));
}

std::optional<KeptKv> KeptKvStore::TakeOldest() {
  return order_.empty() ? std::nullopt : std::optional(Remove(order_.begin()));
}

absl::Time KeptKvStore::oldest() const {
  return order_.empty() ? absl::InfiniteFuture() : order_.front().kept_since;
}

KeptKv KeptKvStore::Remove(Order::iterator place) {
  by_session_.erase(place->session_id);
  pages_held_ -= place->pages_held;
  encoded_bytes_ -= place->EncodedBytes();
  KeptKv kept = std::move(*place);
  order_.erase(place);
  return kept;
}

}  // namespace baton::engine
