// The copy queue of the device double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"

namespace baton::kernels {

// The latest that copies may be: bytes are read and written when their mark is waited for. Who
// writes over the source before, or reads the target, finds out. Must outlive its marks.
class LateCopies final : public CopyQueue {
 public:
  absl::Status Follow(const ExecContext& exec) override;
  absl::Status StartDownload(std::byte* target, const std::byte* source, size_t bytes) override;
  absl::Status StartMoves(std::span<const Piece> pieces) override;
  absl::StatusOr<std::unique_ptr<Mark>> MakeMark() override;

  // Any thread. While held, who waits for a mark goes on waiting.
  void Hold();
  void Release();
  // From now on copies fail.
  void Fail();
  // Bytes that have been moved within the device.
  int64_t moved_bytes();

 private:
  struct Copy {
    std::byte* target;
    const std::byte* source;
    size_t bytes;
    bool within_device;
  };
  class LateMark;

  static absl::Status Do(const Copy& copy);
  // What a mark waits for: the first `count` copies of all.
  absl::Status Finish(int64_t count);

  absl::Mutex mutex_;
  std::deque<Copy> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t moved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool fails_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::kernels
