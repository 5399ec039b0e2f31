#include "common/checkpoint/read_file.h"

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/mapped_file.h"

namespace baton::checkpoint {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.bytes().size(), " bytes; the limit is ", max_bytes));
  }
  const auto bytes = file.bytes();
  return bytes.empty() ? std::string()
                       : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace baton::checkpoint
