// Which decode worker served a conversation last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// A hint: the worker may have kept the conversation's KV. Conversations that were silent longest
// are forgotten first. Thread-safe.
class ConversationHomes {
 public:
  // About 10 MB of them.
  static constexpr size_t kMaxConversations = size_t{1} << 16;

  explicit ConversationHomes(size_t max_conversations = kMaxConversations)
      : max_conversations_(max_conversations) {}

  // The conversation's next turn should go to decode worker `worker`. An empty session_id is none.
  void Set(std::string_view session_id, uint64_t worker);
  std::optional<uint64_t> Find(std::string_view session_id) const;

 private:
  using Entry = std::pair<std::string, uint64_t>;

  const size_t max_conversations_;
  mutable absl::Mutex mutex_;
  std::list<Entry> order_ ABSL_GUARDED_BY(mutex_);  // silent longest first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> homes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
