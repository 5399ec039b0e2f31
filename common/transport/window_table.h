// The windows that a transport has registered, by descriptor.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/transport/completion_queue.h"
#include "common/transport/inbound_window.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {

// Thread-safe. A descriptor is a random 128-bit key and the window's size (u64 little-endian): who
// was not given it can't write.
class WindowTable : public std::enable_shared_from_this<WindowTable> {
 public:
  static constexpr size_t kDescriptorBytes = 24;

  explicit WindowTable(std::shared_ptr<CompletionQueue> completions);

  // The returned window withdraws itself when destroyed; it keeps the table alive.
  absl::StatusOr<std::unique_ptr<Window>> Register(const std::vector<std::span<std::byte>>& extents,
                                                   kernels::LandingMemory& memory);
  // Null when the descriptor is malformed, unknown or withdrawn.
  std::shared_ptr<InboundWindow> Find(std::string_view descriptor) const;
  bool empty() const;
  // Withdraws every window, as if it were destroyed.
  void WithdrawAll();
  // Expect on a window of this table.
  static absl::Status Announce(const ExpectParams& params);

 private:
  class RegisteredWindow;
  void Erase(const std::string& descriptor);

  const std::shared_ptr<CompletionQueue> completions_;
  mutable absl::Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<InboundWindow>> windows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
