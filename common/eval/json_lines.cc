#include "common/eval/json_lines.h"

#include <zlib.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"

namespace baton::eval {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

// Reads up to and without the next line break; false at the end of the file.
absl::StatusOr<bool> ReadLine(gzFile file, std::string* line) {
  line->clear();
  std::array<char, 1 << 16> buffer;
  while (gzgets(file, buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    *line += buffer.data();
    if (!line->empty() && line->back() == '\n') {
      line->pop_back();
      return true;
    }
    if (line->size() > kMaxLineBytes) {
      return absl::InvalidArgumentError(absl::StrCat("exceeds ", kMaxLineBytes, " bytes"));
    }
  }
  int code = Z_OK;
  const char* message = gzerror(file, &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    return absl::DataLossError(message);
  }
  return !line->empty();
}

}  // namespace

absl::Status ForEachLine(const std::string& path,
                         const std::function<absl::Status(std::string_view line)>& take) {
  const GzipFile file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open ", path));
  }
  std::string line;
  for (int64_t number = 1;; ++number) {
    const std::string where = absl::StrCat(path, " line ", number);
    const absl::StatusOr<bool> more = ReadLine(file.get(), &line);
    BATON_RETURN_IF_ERROR(WithContext(more.status(), where));
    if (!*more) {
      return absl::OkStatus();
    }
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      BATON_RETURN_IF_ERROR(WithContext(take(line), where));
    }
  }
}

}  // namespace baton::eval
