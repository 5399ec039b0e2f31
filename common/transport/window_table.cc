#include "common/transport/window_table.h"

#include <sys/random.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "common/transport/completion_queue.h"
#include "common/transport/inbound_window.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {
namespace {

absl::StatusOr<std::string> MakeDescriptor(int64_t size_bytes) {
  std::string descriptor(WindowTable::kDescriptorBytes, '\0');
  constexpr size_t kKeyBytes = 16;
  if (getrandom(descriptor.data(), kKeyBytes, 0) != static_cast<ssize_t>(kKeyBytes)) {
    return absl::InternalError("the system gave no random bytes for a window key");
  }
  for (size_t i = 0; i < 8; ++i) {
    descriptor[kKeyBytes + i] =
        static_cast<char>((static_cast<uint64_t>(size_bytes) >> (8 * i)) & 0xff);
  }
  return descriptor;
}

}  // namespace

class WindowTable::RegisteredWindow : public Window {
 public:
  RegisteredWindow(std::shared_ptr<WindowTable> table,
                   std::string descriptor,
                   std::shared_ptr<InboundWindow> inbound)
      : table_(std::move(table)),
        descriptor_(std::move(descriptor)),
        inbound_(std::move(inbound)) {}
  ~RegisteredWindow() override {
    table_->Erase(descriptor_);
    inbound_->Withdraw();
  }

  std::string descriptor() const override { return descriptor_; }
  int64_t size_bytes() const override { return inbound_->size_bytes(); }
  void CancelTransfers() override { inbound_->CancelTransfers(); }
  InboundWindow& inbound() const { return *inbound_; }

 private:
  const std::shared_ptr<WindowTable> table_;
  const std::string descriptor_;
  const std::shared_ptr<InboundWindow> inbound_;
};

WindowTable::WindowTable(std::shared_ptr<CompletionQueue> completions)
    : completions_(std::move(completions)) {}

absl::StatusOr<std::unique_ptr<Window>> WindowTable::Register(
    const std::vector<std::span<std::byte>>& extents, kernels::LandingMemory& memory) {
  auto inbound = std::make_shared<InboundWindow>(extents, memory, completions_);
  absl::StatusOr<std::string> descriptor = MakeDescriptor(inbound->size_bytes());
  if (!descriptor.ok()) {
    return descriptor.status();
  }
  {
    absl::MutexLock lock(&mutex_);
    windows_.emplace(*descriptor, inbound);
  }
  return std::make_unique<RegisteredWindow>(
      shared_from_this(), *std::move(descriptor), std::move(inbound));
}

std::shared_ptr<InboundWindow> WindowTable::Find(std::string_view descriptor) const {
  if (descriptor.size() != kDescriptorBytes) {
    return nullptr;
  }
  absl::MutexLock lock(&mutex_);
  const auto found = windows_.find(std::string(descriptor));
  return found == windows_.end() ? nullptr : found->second;
}

absl::Status WindowTable::Announce(const ExpectParams& params) {
  const auto* window = dynamic_cast<const RegisteredWindow*>(params.window);
  if (window == nullptr) {
    return absl::InvalidArgumentError("the window was not registered with this transport");
  }
  return window->inbound().Announce(params);
}

bool WindowTable::empty() const {
  absl::MutexLock lock(&mutex_);
  return windows_.empty();
}

void WindowTable::WithdrawAll() {
  std::unordered_map<std::string, std::shared_ptr<InboundWindow>> windows;
  {
    absl::MutexLock lock(&mutex_);
    windows.swap(windows_);
  }
  for (auto& [descriptor, window] : windows) {
    window->Withdraw();
  }
}

void WindowTable::Erase(const std::string& descriptor) {
  absl::MutexLock lock(&mutex_);
  windows_.erase(descriptor);
}

}  // namespace baton::transport
