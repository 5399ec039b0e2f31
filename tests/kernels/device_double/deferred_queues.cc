#include "tests/kernels/device_double/deferred_queues.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

// A queue is known by the memory space of its context.
class DeferredQueues::Queue final : public MemorySpace {
 public:
  bool is_host() const override { return false; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override { return Device().Allocate(bytes); }
  absl::StatusOr<Memory> Adopt(Buffer source) override { return Device().Adopt(std::move(source)); }
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override {
    const auto* const begin = static_cast<const std::byte*>(source);
    work_.emplace_back([target, copy = std::vector<std::byte>(begin, begin + bytes)] {
      return Device().Upload(target, copy.data(), copy.size());
    });
    return absl::OkStatus();
  }
  absl::Status Download(void* /*target*/, const void* /*source*/, size_t /*bytes*/) override {
    return absl::InternalError("device double: a side queue is read before it is joined");
  }
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override {
    work_.emplace_back([=] { return Device().Copy(target, source, bytes); });
    return absl::OkStatus();
  }
  absl::Status Zero(std::byte* target, size_t bytes) override {
    work_.emplace_back([target, bytes] { return Device().Zero(target, bytes); });
    return absl::OkStatus();
  }

  void Add(Work work) { work_.push_back(std::move(work)); }
  bool empty() const { return work_.empty(); }
  absl::Status Finish() {
    absl::Status status;
    for (const Work& work : std::exchange(work_, {})) {
      status.Update(work());
    }
    return status;
  }

 private:
  static MemorySpace& Device() { return GuardedMemory::Get(); }

  std::vector<Work> work_;
};

DeferredQueues::DeferredQueues(int32_t count, size_t workspace_bytes)
    : count_(count), workspace_bytes_(workspace_bytes) {
  for (int32_t i = 0; i < count + kLastCount; ++i) {
    queues_.push_back(std::make_unique<Queue>());
  }
}

DeferredQueues::~DeferredQueues() = default;

absl::StatusOr<ExecContext> DeferredQueues::Fork(const ExecContext& main,
                                                 SideRank rank,
                                                 int32_t index) {
  ExecContext context = main;
  context.device_workspace_bytes = workspace_bytes_;
  context.memory = &QueueOf(rank, index);
  context.side = nullptr;
  return context;
}

absl::Status DeferredQueues::Await(int32_t index) {
  return QueueOf(SideRank::kFirst, index).Finish();
}

absl::Status DeferredQueues::Join() {
  absl::Status status;
  int32_t used = 0;
  for (const std::unique_ptr<Queue>& queue : std::ranges::reverse_view(queues_)) {
    used += queue->empty() ? 0 : 1;
    status.Update(queue->Finish());
  }
  most_queues_ = std::max(most_queues_, used);
  return status;
}

absl::Status DeferredQueues::Do(const ExecContext& context, Work work) {
  auto* const queue = dynamic_cast<Queue*>(context.memory);
  if (queue == nullptr) {
    return work();
  }
  queue->Add(std::move(work));
  return absl::OkStatus();
}

absl::Status DeferredQueues::Finish(const ExecContext& context) {
  auto* const queue = dynamic_cast<Queue*>(context.memory);
  return queue == nullptr ? absl::OkStatus() : queue->Finish();
}

}  // namespace baton::kernels
