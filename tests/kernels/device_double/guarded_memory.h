// Memory that the host can't look at, as a device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"

namespace baton::kernels {

// An address range of the process that is neither readable nor writable but during a copy or an op
// of the device double: who touches it from elsewhere ends with a segmentation fault that names the
// line. One per process; one thread at a time.
class GuardedMemory final : public MemorySpace {
 public:
  static GuardedMemory& Get();

  bool is_host() const override { return false; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override;
  absl::StatusOr<Memory> Adopt(Buffer source) override;
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override;
  absl::Status Download(void* target, const void* source, size_t bytes) override;
  absl::Status Zero(std::byte* target, size_t bytes) override;

  bool Contains(const void* address) const;
  // Blocks that are owned now, and copies from and to the host so far.
  int64_t blocks() const { return blocks_; }
  int64_t uploads() const { return uploads_; }
  int64_t downloads() const { return downloads_; }
  // The next Allocate finds no memory.
  void FailNext() { fail_next_ = true; }

  // Opens the range while it lives; may be nested.
  class Access {
   public:
    Access();
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
  };

 private:
  class Block;

  GuardedMemory();

  std::byte* begin_ = nullptr;
  size_t used_ = 0;
  int open_ = 0;
  int64_t blocks_ = 0;
  int64_t uploads_ = 0;
  int64_t downloads_ = 0;
  bool fail_next_ = false;
};

}  // namespace baton::kernels
