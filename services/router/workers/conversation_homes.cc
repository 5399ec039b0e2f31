#include "services/router/workers/conversation_homes.h"

#include <iterator>
#include <optional>
#include <string_view>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {
namespace {

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void ConversationHomes::Set(std::string_view session_id, uint64_t worker) {
  if (session_id.empty()) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (const auto home = homes_.find(Abseil(session_id)); home != homes_.end()) {
    home->second->second = worker;
    order_.splice(order_.end(), order_, home->second);
    return;
  }
  order_.emplace_back(session_id, worker);
  homes_.emplace(order_.back().first, std::prev(order_.end()));
  if (order_.size() > max_conversations_) {
    homes_.erase(order_.front().first);
    order_.pop_front();
  }
}

std::optional<uint64_t> ConversationHomes::Find(std::string_view session_id) const {
  absl::MutexLock lock(&mutex_);
  const auto home = homes_.find(Abseil(session_id));
  return home == homes_.end() ? std::nullopt : std::optional(home->second->second);
}

}  // namespace baton::router
