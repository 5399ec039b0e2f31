// A file seen as memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace baton::checkpoint {

// A regular file mapped read-only; move-only, unmapped on destruction. Reading is thread-safe. The
// file must not be truncated while it is mapped: the system answers such a read with SIGBUS.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Symbolic links are followed. kNotFound or kFailedPrecondition names the path and the system's
  // reason. An empty file maps to an empty span.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace baton::checkpoint
